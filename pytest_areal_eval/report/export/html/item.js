// One item: its prompt, and each episode with its answer and its conversation.

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
    make("details", one.turns ? {} : { open: "" }, make("summary", {}, "Prompt"), make("pre", { id: "prompt" }, one.prompt || found.prompt)),
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

function turn(by) {
  if (state.episode + by >= 0) open(state.open, state.episode + by);
}
