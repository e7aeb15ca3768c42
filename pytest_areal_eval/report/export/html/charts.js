// The charts, and what draws anything.  Foreign text only ever becomes textContent or an attribute's value.

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
