// Reads the data blocks of this file, lists the items, and starts the page.

const ROW_PX = 30, MARGIN_ROWS = 12, WIDTH = 320, RIGHT = "right", WRONG = "wrong", MIXED = "mixed", ERROR = "error";
const $ = (id) => document.getElementById(id);
const blocks = [...document.querySelectorAll("script[id^=index-]")];
const evaluations = new Map();
const texts = new Map();
const state = { number: 0, view: [], sort: "", down: false, group: null, open: -1, episode: 0 };
let data = null;

// -- reading ---------------------------------------------------------------------------------------------------------

async function unpack(block) {
  const bytes = Uint8Array.from(atob(block.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

async function evaluation(number) {
  if (!evaluations.has(number)) evaluations.set(number, await unpack(blocks[number]));
  return evaluations.get(number);
}

async function textsOf(place) {
  const size = Number(blocks[state.number].dataset.chunk), part = Math.floor(place / size);
  const key = `texts-${state.number}-${part}`;
  if (!texts.has(key)) {
    if (texts.size >= 16) texts.delete(texts.keys().next().value);
    texts.set(key, await unpack($(key)));
  }
  return texts.get(key)[place % size];
}

// -- the table of items ----------------------------------------------------------------------------------------------

function outcomeOf(place) {
  const rewards = data.rewards[place], right = rewards.filter((r) => r !== null && r >= data.passMark).length;
  if (rewards.includes(null)) return ERROR;
  return right === rewards.length ? RIGHT : right === 0 ? WRONG : MIXED;
}

const dots = (place) => data.rewards[place].map((r) => (r === null ? "×" : r >= data.passMark ? "●" : r > 0 ? "◐" : "○")).join("");

function tableColumns() {
  const own = Object.keys(data.columns).filter((name) => new Set(data.columns[name]).size > 1);
  const shown = own.filter((name) => data.columns[name].every((v) => String(v ?? "").length <= 24)).slice(0, 4);
  const k = Math.min(data.k, 16);
  return [
    { name: "item", size: "minmax(150px, 1.5fr)", of: (p) => data.ids[p], mono: true, sort: (p) => p },
    { name: "reward", size: "64px", of: (p) => number(data.reward[p]), num: true, sort: (p) => data.reward[p] },
    ...(data.k > 1 ? [{ name: "episodes", size: `${Math.max(80, k * 12 + 8)}px`, of: dots, sort: (p) => data.reward[p] }] : []),
    { name: "status", size: "120px", of: (p) => data.status[p].replaceAll("_", " "), sort: (p) => data.status[p] },
    { name: "answer", size: "minmax(90px, 1.4fr)", of: (p) => data.answer[p], mono: true, sort: (p) => data.answer[p] },
    ...(data.gold.some(Boolean) ? [{ name: "gold", size: "minmax(60px, .8fr)", of: (p) => data.gold[p], mono: true, sort: (p) => data.gold[p] }] : []),
    ...shown.map((name) => ({ name, size: "minmax(60px, .7fr)", of: (p) => String(data.columns[name][p] ?? ""), sort: (p) => data.columns[name][p] ?? "" })),
    { name: "tokens", size: "64px", of: (p) => number(data.tokens[p], 0), num: true, sort: (p) => data.tokens[p] },
    { name: "seconds", size: "64px", of: (p) => number(data.latency[p], 2), num: true, sort: (p) => data.latency[p] },
  ];
}

function drawHead() {
  $("viewport").style.setProperty("--grid", data.shown.map((c) => c.size).join(" "));
  $("head").replaceChildren(...data.shown.map((c) => make("span", {
    class: `${c.num ? "num" : ""} ${state.sort === c.name ? "on" : ""}`, title: `sort by ${c.name}`, onclick: () => sortBy(c.name),
  }, c.name + (state.sort === c.name ? (state.down ? " ↓" : " ↑") : ""))));
}

function sortBy(name) {
  state.down = state.sort === name && !state.down;
  state.sort = name;
  drawHead();
  refresh();
}

function refresh() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean), outcome = $("outcome").value;
  const within = state.group ? new Set(state.group.places) : null;
  state.view = data.outcomes.map((_, place) => place).filter((place) =>
    (!outcome || data.outcomes[place] === outcome) && (!within || within.has(place)) && words.every((w) => data.haystack[place].includes(w)));
  const by = data.shown.find((c) => c.name === state.sort);
  if (by) {
    const keys = new Map(state.view.map((place) => [place, by.sort(place)])), sign = state.down ? -1 : 1;
    state.view.sort((a, b) => sign * compare(keys.get(a), keys.get(b)) || a - b);
  }
  $("count").textContent = state.view.length === data.ids.length ? `${data.ids.length} items` : `${state.view.length} of ${data.ids.length} items`;
  $("group").hidden = !state.group;
  $("group").textContent = state.group ? `${state.group.column} = ${state.group.label}  ✕` : "";
  $("rows").style.height = `${state.view.length * ROW_PX}px`;
  drawRows();
}

const collator = new Intl.Collator(undefined, { numeric: true }); // made once: localeCompare makes one for each pair
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b)));

function drawRows() {
  const viewport = $("viewport"), first = Math.max(0, Math.floor(viewport.scrollTop / ROW_PX) - MARGIN_ROWS);
  const last = Math.min(state.view.length, Math.ceil((viewport.scrollTop + viewport.clientHeight) / ROW_PX) + MARGIN_ROWS);
  const rows = [];
  for (let i = first; i < last; i++) {
    const place = state.view[i], outcome = data.outcomes[place];
    const row = make("div", { class: `row ${place === state.open ? "on" : ""}`, onclick: () => open(place) }, ...data.shown.map((c) => {
      const tone = c.name === "reward" || c.name === "episodes" ? ` t-${outcome}` : "";
      return make("span", { class: `${c.num ? "num" : ""} ${c.mono ? "mono" : ""}${tone}` }, c.of(place));
    }));
    row.style.top = `${i * ROW_PX}px`;
    rows.push(row);
  }
  $("rows").replaceChildren(...rows);
}

function pickGroup(column, label, places) {
  state.group = { column, label, places };
  refresh();
}

// -- the whole page --------------------------------------------------------------------------------------------------

async function show(wanted) {
  state.number = wanted;
  state.group = null;
  state.sort = "";
  state.open = -1;
  data = await evaluation(wanted);
  data.outcomes = data.ids.map((_, place) => outcomeOf(place));
  data.haystack ||= data.ids.map((id, p) => [id, data.status[p], data.answer[p], data.gold[p],
    ...Object.entries(data.columns).map(([name, values]) => `${name}=${values[p]}`)].join("\n").toLowerCase());
  data.shown = tableColumns();
  $("setup").textContent = data.setup;
  drawOutcomes();
  drawCharts();
  drawHead();
  $("viewport").scrollTop = 0;
  refresh();
  for (const [i, tab] of [...$("tabs").children].entries()) tab.classList.toggle("on", i === wanted);
}

function drawOutcomes() {
  const counts = Map.groupBy ? Map.groupBy(data.outcomes, (o) => o) : new Map([RIGHT, WRONG, MIXED, ERROR].map((o) => [o, data.outcomes.filter((x) => x === o)]));
  const options = [RIGHT, WRONG, MIXED, ERROR].filter((o) => counts.get(o)?.length).map((o) => make("option", { value: o }, `${o} (${counts.get(o).length})`));
  $("outcome").replaceChildren(make("option", { value: "" }, "all outcomes"), ...options);
}

async function start() {
  $("tabs").replaceChildren(...blocks.map((block, i) => make("button", { onclick: () => { close(); show(i); } }, block.dataset.name)));
  $("tabs").hidden = blocks.length < 2;
  let waiting = false;
  $("viewport").addEventListener("scroll", () => {
    if (!waiting) requestAnimationFrame(() => { waiting = false; drawRows(); });
    waiting = true;
  });
  $("search").addEventListener("input", refresh);
  $("outcome").addEventListener("change", refresh);
  $("group").addEventListener("click", () => { state.group = null; refresh(); });
  $("close").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    if ($("detail").hidden || event.target.matches("input, select")) return;
    const keys = { Escape: close, ArrowDown: () => step(1), ArrowUp: () => step(-1),
      ArrowRight: () => turn(1), ArrowLeft: () => turn(-1) };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  const [, from, id] = location.hash.match(/^#(\d+)\/(.*)$/) || [];
  await show(from && Number(from) < blocks.length ? Number(from) : 0);
  const place = id === undefined ? -1 : data.ids.indexOf(decodeURIComponent(id));
  if (place >= 0) await open(place);
  document.body.dataset.ready = String(Math.round(performance.now()));
}

start();
