"use strict";
// Reads the data blocks of this file and draws them.  Foreign text only ever becomes textContent or an attribute's value.
(() => {
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

  // -- drawing ---------------------------------------------------------------------------------------------------------

  function make(tag, attributes = {}, ...children) {
    const node = tag.startsWith("svg:")
      ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
      : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "onclick") node.addEventListener("click", value);
      else node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  }

  const number = (x, digits = 3) => (x === null || x === undefined ? "" : Number.isInteger(x) ? String(x) : x.toFixed(digits));
  const tidy = (x) => String(Number(x.toPrecision(3)));
  const short = (text, size) => (text.length > size ? `${text.slice(0, size - 1)}…` : text);

  function card(title, control, body) {
    return make("div", { class: "card" }, make("div", {}, make("h2", {}, title), control || ""), body);
  }

  function drawCharts() {
    const { groups, tokens, latency, replicas } = data.charts;
    const cards = [];
    const names = Object.keys(groups);
    if (names.length) cards.push(groupCard(groups, names));
    cards.push(histogramCard("Output tokens", tokens, ""), histogramCard("Latency", latency, " s"));
    if (replicas.series) cards.push(replicaCard(replicas));
    $("charts").replaceChildren(...cards);
  }

  function groupCard(groups, names) {
    const body = make("div", { class: "scroll" });
    const select = make("select", { "aria-label": "column" }, ...names.map((name) => make("option", { value: name }, name)));
    const draw = () => body.replaceChildren(groupChart(select.value, groups[select.value]));
    select.addEventListener("change", draw);
    draw();
    return card("Reward by", select, body);
  }

  function groupChart(column, rows) {
    const width = WIDTH, left = 96, right = 88, line = 28;
    const all = rows.flatMap((row) => [row[2], row[3] ?? row[2], row[4] ?? row[2]]);
    const low = Math.min(0, ...all), high = Math.max(1, ...all);
    const x = (value) => left + ((value - low) / (high - low)) * (width - left - right);
    const svg = make("svg:svg", { viewBox: `0 0 ${width} ${rows.length * line + 18}`, width: "100%" });
    for (const tick of [low, (low + high) / 2, high]) {
      svg.append(make("svg:line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: rows.length * line }));
      svg.append(make("svg:text", { x: x(tick), y: rows.length * line + 14, "text-anchor": "middle" }, number(tick, 1)));
    }
    rows.forEach(([label, n, mean, from, to, places], i) => {
      const y = i * line + line / 2;
      svg.append(make("svg:text", { class: "label", x: left - 8, y: y + 4, "text-anchor": "end" }, short(label, 14)));
      if (from !== null) svg.append(make("svg:line", { class: "ci", x1: x(from), x2: x(to), y1: y, y2: y }));
      svg.append(make("svg:circle", { class: "mean", cx: x(mean), cy: y, r: 4.5 }));
      svg.append(make("svg:text", { x: width - right + 10, y: y + 4 }, `${mean.toFixed(3)}  n=${n}`));
      const hit = make("svg:rect", { class: "hit", x: 0, y: i * line, width, height: line, onclick: () => pickGroup(column, label, places) });
      hit.append(make("svg:title", {}, `${column} = ${label}: ${number(mean, 4)} over ${n} items; click to show them`));
      svg.append(hit);
    });
    return svg;
  }

  function histogramCard(title, h, unit) {
    const width = WIDTH, height = 170, left = 34, floor = height - 20;
    const sums = h.right.map((count, i) => count + h.other[i]), top = Math.max(...sums, 1), bar = (width - left - 4) / sums.length;
    const y = (count) => (floor - 8) * (count / top);
    const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, width: "100%" });
    for (const tick of [0, top]) svg.append(make("svg:text", { x: left - 6, y: floor - y(tick) + 4, "text-anchor": "end" }, String(tick)));
    svg.append(make("svg:line", { class: "grid", x1: left, x2: width, y1: floor, y2: floor }));
    sums.forEach((sum, i) => {
      const at = left + i * bar, size = Math.max(bar - 1, 0.5);
      svg.append(make("svg:rect", { class: "right", x: at, y: floor - y(h.right[i]), width: size, height: y(h.right[i]) }));
      svg.append(make("svg:rect", { class: "other", x: at, y: floor - y(sum), width: size, height: y(h.other[i]) }));
      const hit = make("svg:rect", { class: "hit", x: at, y: 0, width: bar, height: floor });
      const last = i === sums.length - 1 && h.max > h.width * sums.length;
      const range = last ? `from ${tidy(h.width * i)}${unit} on` : `${tidy(h.width * i)} to ${tidy(h.width * (i + 1))}${unit}`;
      hit.append(make("svg:title", {}, `${range}: ${h.right[i]} right, ${h.other[i]} not`));
      svg.append(hit);
    });
    for (const i of [0, Math.floor(sums.length / 2), sums.length]) {
      const anchor = i === 0 ? "start" : i === sums.length ? "end" : "middle";
      svg.append(make("svg:text", { x: left + i * bar, y: height - 5, "text-anchor": anchor }, `${tidy(h.width * i)}${unit}`));
    }
    const note = make("span", { class: "soft" }, `median ${tidy(h.median)}${unit}, max ${tidy(h.max)}${unit}`);
    const legend = make("div", { class: "legend" }, make("i", { class: "key" }), "right", make("i", { class: "key other" }), "not right");
    return card(title, note, make("div", {}, svg, legend));
  }

  function replicaCard({ step, series }) {
    const width = WIDTH, height = 170, left = 34, floor = height - 20, names = Object.keys(series);
    const top = Math.max(...names.flatMap((name) => series[name]), 1), count = series[names[0]].length;
    const svg = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, width: "100%" });
    for (const tick of [0, top]) svg.append(make("svg:text", { x: left - 6, y: floor - (floor - 8) * (tick / top) + 4, "text-anchor": "end" }, number(tick, 0)));
    svg.append(make("svg:line", { class: "grid", x1: left, x2: width, y1: floor, y2: floor }));
    names.forEach((name, i) => {
      const points = series[name].map((v, j) => `${left + ((j + 0.5) / count) * (width - left)},${floor - (floor - 8) * (v / top)}`);
      svg.append(make("svg:polyline", { class: `s${i}`, points: points.join(" ") }, make("svg:title", {}, name)));
    });
    svg.append(make("svg:text", { x: left, y: height - 5 }, "0 s"));
    svg.append(make("svg:text", { x: width, y: height - 5, "text-anchor": "end" }, `${tidy(step * count)} s`));
    return card("Episodes in flight", make("span", { class: "soft" }, short(names.length === 1 ? names[0] : `${names.length} replicas`, 40)), svg);
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
      { name: "gold", size: "minmax(60px, .8fr)", of: (p) => data.gold[p], mono: true, sort: (p) => data.gold[p] },
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

  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));

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

  // -- one item --------------------------------------------------------------------------------------------------------

  async function open(place, episode = 0) {
    const found = await textsOf(place);
    state.open = place;
    state.episode = Math.min(episode, found.episodes.length - 1);
    $("item").replaceChildren(...itemParts(place, found));
    $("detail").hidden = false;
    history.replaceState(null, "", `#${state.number}/${encodeURIComponent(data.ids[place])}`);
    drawRows();
  }

  function itemParts(place, found) {
    const one = found.episodes[state.episode], outcome = data.outcomes[place];
    const columns = Object.entries(data.columns).filter(([, values]) => values[place] !== null);
    return [
      make("h2", {}, data.ids[place]),
      make("div", { class: "meta" }, make("span", { class: `chip ${outcome === MIXED ? "plain" : outcome}` }, outcome),
        make("span", {}, `reward ${number(data.reward[place], 4)}`), ...columns.map(([name, values]) => make("span", {}, `${name}: ${short(String(values[place]), 60)}`))),
      make("details", { open: "" }, make("summary", {}, "Prompt"), make("pre", { id: "prompt" }, one.prompt || found.prompt)),
      found.episodes.length > 1 ? make("div", { class: "episodes" }, ...found.episodes.map((e, i) => make("button", {
        class: `${i === state.episode ? "on" : ""} ${toneOf(e)}`, onclick: () => open(place, i) }, `${i} ${e.reward === undefined ? "×" : e.reward >= data.passMark ? "●" : "○"}`))) : null,
      ...episodeParts(one),
    ].filter(Boolean);
  }

  const toneOf = (e) => (e.reward === undefined ? "t-error" : e.reward >= data.passMark ? "t-right" : "t-wrong");

  function episodeParts(e) {
    const meta = { status: e.status.replaceAll("_", " "), reward: e.reward === undefined ? "none" : number(e.reward, 4), tokens: `${e.input || 0} in, ${e.output || 0} out`,
      seconds: e.latency, stop: e.stop, replica: e.replica, seed: e.seed, requests: e.requests, attempts: e.attempts, ...(e.metrics || {}) };
    const tone = e.reward === undefined ? "" : e.reward >= data.passMark ? "right" : "wrong";
    return [
      make("div", { class: "meta" }, ...Object.entries(meta).filter(([, v]) => v !== undefined && v !== "").map(([name, v]) => make("span", {}, `${name}: ${v}`))),
      e.reasoning ? make("details", {}, make("summary", {}, `Reasoning (${e.reasoning.length.toLocaleString("en")} characters)`), make("pre", { id: "reasoning" }, e.reasoning)) : null,
      ...conversation(e),
      make("h3", {}, e.turns ? "Last answer" : "Completion"), make("pre", { class: `answer ${tone}`, id: "completion" }, e.completion || "(empty)"),
      e.extracted || e.gold ? make("div", { class: "pair" },
        make("div", {}, make("h3", {}, "Extracted answer"), make("pre", { class: `answer ${tone}`, id: "extracted" }, e.extracted || "(none)")),
        make("div", {}, make("h3", {}, "Gold"), make("pre", { id: "gold" }, e.gold || "(not told)"))) : null,
      e.error ? make("h3", {}, "Error") : null, e.error ? make("pre", { class: "error" }, e.error) : null,
      e.traceback ? make("pre", { class: "error" }, e.traceback) : null,
    ];
  }

  // An agent's episode: what was said by whom, and the calls of tools.
  function conversation(e) {
    if (!e.turns) return [];
    const calls = e.turns.reduce((sum, turn) => sum + (turn.calls || []).length, 0);
    const said = `Conversation (${e.turns.length} messages${calls ? `, ${calls} tool call${calls > 1 ? "s" : ""}` : ""})`;
    const turns = e.turns.map((turn) => make("div", { class: `turn ${turn.role === "assistant" ? "model" : ""}` },
      make("h3", {}, turn.role, turn.cost ? make("span", {}, turn.cost) : ""),
      turn.reasoning ? make("pre", { class: "soft" }, turn.reasoning) : null,
      turn.text ? make("pre", {}, turn.text) : null,
      ...(turn.calls || []).map((call) => make("pre", { class: "call" }, call))));
    return [make("details", { open: "", id: "conversation" }, make("summary", {}, said), ...turns)];
  }

  function close() {
    $("detail").hidden = true;
    state.open = -1;
    history.replaceState(null, "", "#");
    drawRows();
  }

  function step(by) {
    const at = state.view.indexOf(state.open), next = state.view[at + by];
    if (at < 0 || next === undefined) return;
    $("viewport").scrollTop = Math.max(0, (at + by) * ROW_PX - $("viewport").clientHeight / 2);
    open(next);
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
      const keys = { Escape: close, ArrowDown: () => step(1), ArrowUp: () => step(-1) };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
    const [, from, id] = location.hash.match(/^#(\d+)\/(.*)$/) || [];
    await show(from && Number(from) < blocks.length ? Number(from) : 0);
    const place = id === undefined ? -1 : data.ids.indexOf(decodeURIComponent(id));
    if (place >= 0) await open(place);
    document.body.dataset.ready = String(Math.round(performance.now()));
  }

  start();
})();
