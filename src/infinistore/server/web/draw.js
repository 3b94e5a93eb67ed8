// What is drawn: lines over time, the pool's cells, tables. Text is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640, HEIGHT = 160, LEFT = 64, TOP = 10, BOTTOM = 8;

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// A round number that is not below `value`, for an axis.
export function ceiling(value) {
  if (value <= 0) return 1;
  const step = 2 ** Math.floor(Math.log2(value));
  return step >= value ? step : step * (step * 1.5 >= value ? 1.5 : 2);
}

// `lines`: [class, [value or null, ...]]; `points`: how many fit the width.
export function chart(svg, lines, points, { top = null, show }) {
  const known = lines.flatMap(([, values]) => values.filter((value) => value !== null));
  const limit = top ?? ceiling(Math.max(0, ...known));
  const y = (value) => TOP + (1 - value / limit) * (HEIGHT - TOP - BOTTOM);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const at = y(limit * share);
    parts.push(shape("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: at, y2: at }));
    const label = shape("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" });
    label.textContent = show(limit * share);
    parts.push(label);
  }
  for (const [name, values] of lines) {
    const step = (WIDTH - LEFT) / (points - 1);
    const first = points - values.length;
    let path = "", pen = "M";
    values.forEach((value, index) => {
      if (value !== null) path += `${pen}${(LEFT + (first + index) * step).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = value === null ? "M" : "L";
    });
    parts.push(shape("path", { class: name, d: path }));
  }
  svg.replaceChildren(...parts);
}

// Shares of a whole as cells, each state at least one cell if there is anything of it.
export function cellsOf(states, cells) {
  const total = states.reduce((sum, [, value]) => sum + value, 0) || 1;
  const exact = states.map(([, value]) => (value * cells) / total);
  const given = exact.map((share) => (share > 0 ? Math.max(1, Math.floor(share)) : 0));
  const rest = exact.map((share, index) => [share - given[index], index]).sort((a, b) => b[0] - a[0]);
  let left = cells - given.reduce((sum, one) => sum + one, 0);
  for (let i = 0; left > 0; i = (i + 1) % rest.length, left -= 1) given[rest[i][1]] += 1;
  while (left < 0) {
    given[given.indexOf(Math.max(...given))] -= 1;
    left += 1;
  }
  return given;
}

export function pool(svg, states) {
  const columns = 64, rows = 8, size = 10;
  const names = cellsOf(states, columns * rows).flatMap((cells, i) => Array(cells).fill(states[i][0]));
  // Down the columns, so that a state is one area.
  svg.replaceChildren(...names.map((name, i) => shape("rect", {
    class: name, x: Math.floor(i / rows) * size + 0.5, y: (i % rows) * size + 0.5,
    width: size - 1.5, height: size - 1.5, rx: 1.5,
  })));
}

export function swatch(name) {
  const svg = shape("svg", { viewBox: "0 0 10 10" });
  svg.append(shape("rect", { class: name, x: 0.5, y: 0.5, width: 9, height: 9, rx: 2 }));
  return svg;
}

function element(name, text, isNumber) {
  const made = document.createElement(name);
  made.textContent = text;
  if (isNumber) made.className = "number";
  return made;
}

// `columns`: [heading, row => text, is a number]. No rows: that is said; null: nothing to show at all.
export function table(target, columns, rows) {
  target.closest("section").hidden = rows === null;
  if (rows === null) return;
  const parts = [];
  if (rows.length > 0) {
    const head = document.createElement("tr");
    head.append(...columns.map(([heading, , isNumber]) => element("th", heading, isNumber)));
    parts.push(head);
  } else {
    parts.push(element("caption", "none"));
  }
  for (const row of rows) {
    const line = document.createElement("tr");
    line.append(...columns.map(([, show, isNumber]) => element("td", show(row), isNumber)));
    parts.push(line);
  }
  target.replaceChildren(...parts);
}
