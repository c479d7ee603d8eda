// A map of words: each is a point with its name, in the colour of the word that it is near to.

const MARGIN = 24;
const LETTER = 7.4; // the width of an average letter
const BOLD = 8.6;
const LINE = 15;
const COLOURS = 8; // the classes group-0 to group-7 of kinds.css

// `points` are {word, x, y, group, asked}.  Return the map as an SVG element of this width in pixels.
export function drawnMap(points, label, width) {
  const size = { width, height: Math.max(320, (2 / 3) * width) };
  const drawing = svg("svg", { viewBox: `0 0 ${size.width} ${size.height}`, class: "map", role: "img", "aria-label": label });
  const placed = placedIn(points, size);
  for (const { word, x, y, group, asked } of placed) {
    const dot = svg("circle", { cx: x, cy: y, r: asked ? 5 : 3, class: `group-${group % COLOURS}` });
    dot.append(svg("title", {}, word));
    drawing.append(dot);
  }
  const dots = placed.map(({ x, y }) => ({ left: x - 3, right: x + 3, top: y - 3, bottom: y + 3 }));
  const names = [];
  // the words that were asked for get their names first, over other points if need be; a name without room is
  // left to the tooltip
  for (const { word, x, y, group, asked } of [...placed].sort((a, b) => b.asked - a.asked)) {
    const box = freePlace(word, { x, y, letter: asked ? BOLD : LETTER }, asked ? names : [...names, ...dots], size);
    if (!box) continue;
    names.push(box);
    drawing.append(svg("text", {
      x: box.left, y: box.bottom - 4, class: `group-${group % COLOURS}${asked ? " asked" : ""}`,
    }, word));
  }
  return drawing;
}

// Scale the points to the drawing; both axes have the same unit.
function placedIn(points, { width, height }) {
  const [xs, ys] = [points.map((point) => point.x), points.map((point) => point.y)];
  const middle = (values) => (Math.min(...values) + Math.max(...values)) / 2;
  const extent = (values) => Math.max(Math.max(...values) - Math.min(...values), 1e-9);
  const scale = Math.min((width - 2 * MARGIN) / extent(xs), (height - 2 * MARGIN) / extent(ys));
  return points.map((point) => ({
    ...point,
    x: width / 2 + (point.x - middle(xs)) * scale,
    y: height / 2 - (point.y - middle(ys)) * scale,
  }));
}

// Return where a name fits beside its point, or undefined.
function freePlace(word, { x, y, letter }, taken, size) {
  const width = [...word].length * letter;
  const places = [[7, -LINE / 2], [-7 - width, -LINE / 2], [-width / 2, -LINE - 5], [-width / 2, 5]];
  return places
    .map(([right, down]) => ({ left: x + right, right: x + right + width, top: y + down, bottom: y + down + LINE }))
    .find((box) => isInside(box, size) && !taken.some((other) => overlap(box, other)));
}

function isInside({ left, right, top, bottom }, { width, height }) {
  return left >= 0 && right <= width && top >= 0 && bottom <= height;
}

function overlap(a, b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
