// Values under the pointer of the charts, zoom and kernels of the timeline. The page is complete
// without it but for the kernels.
'use strict';

const svg_namespace = 'http://www.w3.org/2000/svg';

function format_seconds(s) {
  if (s < 1e-3) return (s * 1e6).toPrecision(3) + ' us';
  return s < 1 ? (s * 1e3).toPrecision(3) + ' ms' : s.toPrecision(3) + ' s';
}

// As Ticks of report_html.h.
function ticks(low, high, count) {
  const raw = (high - low) / count;
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  let step = 10 * power;
  for (const factor of [5, 2, 1]) {
    if (factor * power >= raw * (1 - 1e-9)) step = factor * power;
  }
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

function nearest(points, step) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= step) low = middle; else high = middle;
  }
  return step - points[low][0] > points[high][0] - step ? points[high] : points[low];
}

function add_values(figure) {
  const plot = figure.querySelector('.plot');
  if (!plot) return;
  const data = JSON.parse(figure.querySelector('script').textContent);
  const cursor = plot.querySelector('.cursor');
  const tip = plot.querySelector('.tip');
  const [first, last] = data.steps;
  plot.addEventListener('pointermove', (event) => {
    const box = plot.getBoundingClientRect();
    const fraction = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    const wanted = first + fraction * (last - first);
    const main = nearest(data.curves[0].points, wanted);
    const lines = ['step ' + main[0]];
    for (const curve of data.curves) {
      if (curve.points.length === 0) continue;
      const point = nearest(curve.points, main[0]);
      const where = point[0] === main[0] ? '' : ' (step ' + point[0] + ')';
      lines.push(curve.name + ' ' + Number(point[1].toPrecision(6)) +
                 (data.unit ? ' ' + data.unit : '') + where);
    }
    const x = last > first ? (main[0] - first) / (last - first) : 0.5;
    cursor.style.display = tip.style.display = 'block';
    cursor.style.left = 100 * x + '%';
    tip.textContent = lines.join('\n');
    tip.style.top = '8px';
    tip.style.left = x < 0.5 ? 'calc(' + 100 * x + '% + 10px)' : 'auto';
    tip.style.right = x < 0.5 ? 'auto' : 'calc(' + 100 * (1 - x) + '% + 10px)';
  });
  plot.addEventListener('pointerleave', () => {
    cursor.style.display = tip.style.display = 'none';
  });
}

function make_timeline(lanes) {
  const span = Number(lanes.dataset.span);
  // Positions in parts of the whole step.
  const shapes = Array.from(lanes.querySelectorAll('.t, .mb'), (element) => ({
    element,
    begin: parseFloat(element.getAttribute('x')) / 100,
    length: parseFloat(element.getAttribute('width') || '0') / 100,
    room: parseFloat(element.dataset.width) / 100,  // of a number; else NaN
  }));
  const axis = lanes.querySelector('.axis');
  const kernels = read_kernels(span);
  const layer = lanes.appendChild(document.createElementNS(svg_namespace, 'g'));
  let view = [0, 1];

  const position = (at) => 100 * (at - view[0]) / (view[1] - view[0]);
  const add = (parent, tag, attributes, text) => {
    const element = parent.appendChild(document.createElementNS(svg_namespace, tag));
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    if (text !== undefined) element.textContent = text;
    return element;
  };

  function draw_axis() {
    axis.replaceChildren();
    const bottom = Number(axis.dataset.bottom);
    const all = 1e3 * span;
    for (const tick of ticks(view[0] * all, view[1] * all, 10)) {
      const x = position(tick / all);
      add(axis, 'line', {x1: x + '%', x2: x + '%', y1: 0, y2: bottom});
      if (x < 98) {
        add(axis, 'text', {x: x + '%', y: bottom + 15, class: x < 1 ? 'first' : ''}, tick);
      }
    }
  }

  // Kernels that are too narrow to be told apart are drawn as one.
  function draw_kernels() {
    layer.replaceChildren();
    const pixel = (view[1] - view[0]) / Math.max(lanes.clientWidth, 1);
    for (const row of kernels.rows) {
      let merged = null;
      const flush = () => {
        if (!merged) return;
        const rect = add(layer, 'rect', {
          class: 'k ' + kernels.classes[merged.kind], y: row.y, height: kernels.height,
          x: position(merged.begin) + '%',
          width: Math.max(position(merged.end) - position(merged.begin), 0.02) + '%',
        });
        add(rect, 'title', {}, merged.count > 1
            ? merged.count + ' kernels, ' + format_seconds(merged.busy * span)
            : kernels.names[merged.name] + (merged.microbatch >= 0 ? ' ' + merged.microbatch : '') +
              ', ' + format_seconds(merged.busy * span));
        merged = null;
      };
      for (const kernel of row.kernels) {
        if (kernel.end < view[0] || kernel.begin > view[1]) continue;
        const is_narrow = kernel.end - kernel.begin < 1.5 * pixel;
        if (merged && merged.is_narrow && is_narrow && kernel.kind === merged.kind &&
            kernel.begin - merged.end < pixel) {
          merged.end = kernel.end;
          merged.busy += kernel.end - kernel.begin;
          ++merged.count;
          continue;
        }
        flush();
        merged = {...kernel, is_narrow, busy: kernel.end - kernel.begin, count: 1};
      }
      flush();
    }
  }

  function show(begin, end) {
    const length = Math.min(Math.max(end - begin, 1e-6), 1);
    const from = Math.min(Math.max(begin, 0), 1 - length);
    view = [from, from + length];
    for (const shape of shapes) {
      const end_of_shape = shape.begin + shape.length;
      const is_seen = end_of_shape >= view[0] && shape.begin <= view[1];
      const pixels = shape.room / (view[1] - view[0]) * lanes.clientWidth;
      const has_room = !(pixels < 7 * shape.element.textContent.length + 5);
      shape.element.style.display = is_seen && has_room ? '' : 'none';
      if (!is_seen) continue;
      shape.element.setAttribute('x', position(shape.begin) + '%');
      if (shape.length > 0) {
        shape.element.setAttribute('width', 100 * shape.length / (view[1] - view[0]) + '%');
      }
    }
    draw_axis();
    draw_kernels();
  }

  const zoom = (factor) => {
    const middle = (view[0] + view[1]) / 2;
    const half = (view[1] - view[0]) / 2 * factor;
    show(middle - half, middle + half);
  };
  const move = (part) => {
    const length = view[1] - view[0];
    show(view[0] + part * length, view[1] + part * length);
  };
  const actions = {
    in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25),
    all: () => show(0, 1),
  };
  for (const button of document.querySelectorAll('[data-zoom]')) {
    button.addEventListener('click', actions[button.dataset.zoom]);
  }
  lanes.addEventListener('dblclick', actions.all);

  let selection = null;
  const part_of = (event) => {
    const box = lanes.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  lanes.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    lanes.setPointerCapture(event.pointerId);
    selection = {from: part_of(event), to: part_of(event),
                 rect: add(lanes, 'rect', {class: 'selection', y: 0, height: '100%'})};
  });
  lanes.addEventListener('pointermove', (event) => {
    if (!selection) return;
    selection.to = part_of(event);
    selection.rect.setAttribute('x', 100 * Math.min(selection.from, selection.to) + '%');
    selection.rect.setAttribute('width', 100 * Math.abs(selection.to - selection.from) + '%');
  });
  const finish = (is_done) => {
    if (!selection) return;
    const {from, to, rect} = selection;
    selection = null;
    rect.remove();
    if (!is_done || Math.abs(to - from) < 0.005) return;
    const at = (part) => view[0] + part * (view[1] - view[0]);
    show(at(Math.min(from, to)), at(Math.max(from, to)));
  };
  lanes.addEventListener('pointerup', () => finish(true));
  lanes.addEventListener('pointercancel', () => finish(false));
  window.addEventListener('resize', () => show(view[0], view[1]));
  show(0, 1);
}

// Kernels with their positions in parts of the step; see report_timeline_svg.cc.
function read_kernels(span) {
  const source = document.getElementById('kernels');
  if (!source) return {rows: []};
  const data = JSON.parse(source.textContent);
  for (const row of data.rows) {
    const numbers = row.kernels;
    row.kernels = [];
    let begin = 0;
    for (let i = 0; i + 4 < numbers.length; i += 5) {
      begin += numbers[i];
      row.kernels.push({
        begin: begin * 1e-7 / span, end: (begin + numbers[i + 1]) * 1e-7 / span,
        name: numbers[i + 2], kind: numbers[i + 3], microbatch: numbers[i + 4],
      });
    }
  }
  return data;
}

for (const figure of document.querySelectorAll('.chart')) add_values(figure);
for (const lanes of document.querySelectorAll('.lanes')) make_timeline(lanes);
document.documentElement.dataset.ready = 'true';
