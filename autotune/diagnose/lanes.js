// The lane view of a step: draws the rows of the JSON in #lanes-data on a canvas, and zooms.
// #at=START,END (microseconds) in the address is the stretch that is shown.
// lanes_tools.js finds, selects and loads other steps; `lanes` is what the two share.
const lanes = (() => {
  const canvas = document.getElementById("lanes-canvas"), tip = document.getElementById("tip");
  const said = document.getElementById("lanes-said"), root = document.documentElement;
  const HEIGHTS = { idle: 20, device: 22, host: 14 }, AXIS = 24, GAP = 7, DIMMED = 0.18;
  const state = { data: null, view: null, whole: null, chosen: null, found: null, selected: null };
  let colours = [], pageInk = "#000000", drag = null, shortest = 200;

  // starts and launches come as differences to the one before; a launch is the number of an event in the rows' order
  const load = (data) => {
    let number = 0;
    for (const row of data.rows) {
      let at = 0, launch = 0;
      row.start = row.start.map((step) => (at += step));
      row.launch = row.launch.map((step) => (launch += step));
      row.first = number;
      number += row.start.length;
    }
    shortest = Math.max(200 * data.resolution, 200);
    state.whole = { from: 0, to: Math.max(data.duration, shortest) };
    Object.assign(state, { data, view: { ...state.whole }, chosen: null, found: null, selected: null });
    launched = null;
  };
  const event = (number) => {
    const row = state.data.rows.find((one) => number < one.first + one.start.length);
    return { row, at: number - row.first };
  };
  // by the number of a call, the events that it launched: made when it is first asked for
  let launched = null;
  const launchedBy = (number) => {
    if (!launched) {
      launched = new Map();
      for (const row of state.data.rows) {
        row.launch.forEach((call, at) => {
          if (call >= 0) launched.set(call, [...(launched.get(call) || []), { row, at }]);
        });
      }
    }
    return launched.get(number) || [];
  };
  // pairs of launch and launched that an event is part of
  const launchesOf = ({ row, at }) => {
    if (row.launch.length && row.launch[at] >= 0) return [[event(row.launch[at]), { row, at }]];
    return launchedBy(row.first + at).map((one) => [{ row, at }, one]);
  };

  let bottom = AXIS;
  // lane by lane from the top; without room beside the lanes their labels stand above them
  const place = () => {
    const above = gutter() ? 0 : 15;
    bottom = AXIS;
    state.data.lanes.forEach((lane, index) => {
      const rows = state.data.rows.filter((row) => row.lane === index), height = HEIGHTS[lane.place];
      lane.top = bottom;
      for (const row of rows) { row.top = bottom + above + row.row * height; row.height = height - 1; }
      bottom += above + (Math.max(0, ...rows.map((row) => row.row)) + 1) * height + GAP;
    });
    canvas.style.height = `${bottom}px`;
  };

  const gutter = () => (canvas.clientWidth < 600 ? 0 : 128);
  const room = () => canvas.clientWidth - gutter();
  const x = (time) => gutter() + ((time - state.view.from) / (state.view.to - state.view.from)) * room();
  const time = (pixel) => state.view.from + ((pixel - gutter()) / room()) * (state.view.to - state.view.from);
  const unitOf = (ns) => (ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"]);
  const duration = (ns) => {
    const [scale, unit] = unitOf(ns);
    return `${Number((ns / scale).toPrecision(4))} ${unit}`;
  };

  // the first event of a row that begins after a time
  const after = (row, when) => {
    let low = 0, high = row.start.length;
    while (low < high) { const middle = (low + high) >> 1; if (row.start[middle] <= when) low = middle + 1; else high = middle; }
    return low;
  };

  const draw = () => {
    place();
    const ratio = devicePixelRatio || 1, context = canvas.getContext("2d"), width = canvas.clientWidth;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(bottom * ratio);
    context.scale(ratio, ratio);
    const style = getComputedStyle(root), ink = style.getPropertyValue("--ink"), muted = style.getPropertyValue("--muted");
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    axis(context, muted, style.getPropertyValue("--rule"));
    let drawn = 0;
    context.save();
    context.beginPath();
    context.rect(gutter(), 0, room(), bottom);
    context.clip();
    for (const row of state.data.rows) drawn += drawRow(context, row);
    if (state.chosen) {
      outline(context, ink);
      for (const [from, to] of launchesOf(state.chosen)) arrow(context, ink, from, to);
    }
    if (state.selected) band(context, style.getPropertyValue("--band"), ink);
    context.restore();
    labels(context, ink);
    root.dataset.lanesDrawn = drawn;
    root.dataset.lanesFrom = Math.round(state.view.from);
    root.dataset.lanesTo = Math.round(state.view.to);
  };

  // A pixel is coloured by the share of it that events have: those thinner than it, the ends of longer ones, and
  // several that are drawn as one.
  const drawRow = (context, row) => {
    let drawn = 0, shades = new Map(), pixel = -1;
    const put = (at, key, share) => {
      if (at !== pixel) {
        shade(context, row, pixel, shades);
        shades = new Map();
        pixel = at;
      }
      shades.set(key, (shades.get(key) || 0) + share);
    };
    for (let at = Math.max(0, after(row, state.view.from) - 1); at < row.start.length && row.start[at] < state.view.to; at++) {
      const left = Math.max(x(row.start[at]), gutter()), until = Math.min(x(row.start[at] + row.took[at]), canvas.clientWidth);
      if (until < left) continue;
      const key = row.key[at], right = until - left > 3 ? until - 0.6 : until;
      const full = filled(row, at) * (!state.found || state.found.has(row.name[at]) ? 1 : DIMMED);
      const first = Math.floor(left), last = Math.floor(right);
      drawn++;
      if (first === last) {
        put(first, key, (right - left) * full);
        continue;
      }
      put(first, key, (first + 1 - left) * full);
      if (last > first + 1) {
        context.fillStyle = colours[key].fill;
        context.globalAlpha = full;
        context.fillRect(first + 1, row.top, last - first - 1, row.height);
        context.globalAlpha = 1;
        if (right - left > 34) write(context, row, at, left, right - left, full > 0.5 ? colours[key].ink : pageInk);
      }
      put(last, key, (right - last) * full);
    }
    shade(context, row, pixel, shades);
    return drawn;
  };

  // how much of an event's time is covered: all, but for several that are drawn as one
  const filled = (row, at) => (row.covered.length && row.took[at] ? Math.min(row.covered[at] / row.took[at], 1) : 1);

  // one pixel of a row, in which each colour has its share
  const shade = (context, row, pixel, shades) => {
    let above = 0;
    const layers = [...shades].reverse().map(([key, share]) => {
      const alpha = Math.min(share / Math.max(1 - above, share, 1e-9), 1);
      above += share;
      return [key, alpha];
    });
    for (const [key, alpha] of layers.reverse()) {
      context.globalAlpha = alpha;
      context.fillStyle = colours[key].fill;
      context.fillRect(pixel, row.top, 1, row.height);
    }
    context.globalAlpha = 1;
  };

  const write = (context, row, at, from, width, ink) => {
    context.fillStyle = ink;
    const name = state.data.names[row.name[at]], room = width - 7;
    let most = name.length, said = name;
    while (most > 1 && context.measureText(said).width > room) {
      most = Math.min(most - 1, Math.floor(most * room / context.measureText(said).width));
      said = `${name.slice(0, Math.max(most, 1))}…`;
    }
    context.fillText(said, from + 4, row.top + row.height / 2 + 1);
  };

  const axis = (context, ink, rule) => {
    const rough = ((state.view.to - state.view.from) / room()) * 110, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
    for (let at = Math.ceil(state.view.from / step) * step; at <= state.view.to; at += step) {
      context.fillStyle = rule;
      context.fillRect(x(at), AXIS - 6, 1, bottom);
      context.fillStyle = ink;
      const label = tick(at, step);
      if (x(at) + 3 + context.measureText(label).width < canvas.clientWidth) context.fillText(label, x(at) + 3, 9);
    }
  };

  // with as many digits as tell it from the next
  const tick = (at, step) => {
    const [scale, unit] = unitOf(state.view.to), decimals = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
    return at === 0 ? "0" : `${(at / scale).toFixed(decimals)} ${unit}`;
  };

  const arrow = (context, ink, from, to) => {
    const left = x(from.row.start[from.at]), top = from.row.top + (from.row.top > to.row.top ? 0 : from.row.height);
    const right = x(to.row.start[to.at]), bottom = to.row.top + (from.row.top > to.row.top ? to.row.height : 0);
    const turn = Math.sign(bottom - top), angle = Math.atan2(bottom - top, right - left);
    context.strokeStyle = context.fillStyle = ink;
    context.lineWidth = 1.2;
    context.beginPath();
    context.moveTo(left, top);
    context.bezierCurveTo(left, top + 0.4 * (bottom - top), right, bottom - 0.4 * (bottom - top), right, bottom);
    context.stroke();
    context.beginPath();
    context.moveTo(right, bottom);
    context.lineTo(right - 4, bottom - turn * 7);
    context.lineTo(right + 4, bottom - turn * 7);
    context.fill();
    root.dataset.lanesArrow = `${Math.round(angle * 100)}`;
  };

  const band = (context, fill, ink) => {
    const left = x(state.selected.from), right = x(state.selected.to);
    context.fillStyle = fill;
    context.fillRect(left, AXIS - 6, right - left, bottom);
    context.fillStyle = ink;
    for (const edge of [left, right]) context.fillRect(edge - 0.5, AXIS - 6, 1, bottom);
  };

  const labels = (context, ink) => {
    context.fillStyle = ink;
    for (const lane of state.data.lanes) {
      if (gutter()) context.fillText(lane.label, 0, lane.top + 10, gutter() - 8);
      else context.fillText(lane.label, 0, lane.top + 7);
    }
  };

  const outline = (context, ink) => {
    const { row, at } = state.chosen, left = x(row.start[at]);
    context.strokeStyle = ink;
    context.lineWidth = 2;
    context.strokeRect(left, row.top - 1, Math.max(x(row.start[at] + row.took[at]) - left, 2), row.height + 2);
  };

  const launchWords = (one) => {
    const [pair, ...more] = launchesOf(one);
    if (!pair) return "";
    const [from, to] = pair, wait = duration(Math.max(to.row.start[to.at] - from.row.start[from.at], 0));
    const name = (other) => state.data.names[other.row.name[other.at]];
    if (one.row === to.row && one.at === to.at) return `\nlaunched ${wait} earlier by ${name(from)}`;
    return `\nlaunches ${name(to)}${more.length ? ` and ${more.length} more` : ""}, which starts ${wait} later`;
  };

  const words = ({ row, at }) => {
    const many = row.count.length && row.count[at] > 1 ? `${row.count[at]} events, the longest: ` : "";
    return `${many}${state.data.names[row.name[at]]}\n${state.data.keys[row.key[at]].words} · ${state.data.lanes[row.lane].label}\n` +
      `at ${duration(Math.max(row.start[at], 0))}, for ${duration(row.took[at])}${launchWords({ row, at })}`;
  };

  const under = (event) => {
    const box = canvas.getBoundingClientRect(), left = event.clientX - box.left, top = event.clientY - box.top;
    const row = state.data.rows.find((one) => top >= one.top && top <= one.top + one.height);
    if (!row || left < gutter()) return null;
    const slack = ((state.view.to - state.view.from) / room()) * 2, when = time(left);
    for (let at = after(row, when + slack) - 1; at >= 0 && at > after(row, when + slack) - 5; at--) {
      if (row.start[at] + row.took[at] >= when - slack) return { row, at };
    }
    return null;
  };

  const tell = (found, left, top) => {
    tip.hidden = !found;
    if (!found) return;
    tip.textContent = words(found);
    tip.style.left = `${Math.max(8, Math.min(left + 14, innerWidth - tip.offsetWidth - 12)) + scrollX}px`;
    tip.style.top = `${top + 16 + scrollY}px`;
  };

  const show = (from, to) => {
    const length = Math.min(Math.max(to - from, shortest), state.whole.to - state.whole.from);
    const start = Math.min(Math.max((from + to - length) / 2, state.whole.from), state.whole.to - length);
    state.view = { from: start, to: start + length };
    said.textContent = `${duration(length)} of ${duration(state.whole.to)}, from ${start < 1 ? "its start" : duration(start)}`;
    draw();
  };
  const zoom = (factor, centre = (state.view.from + state.view.to) / 2) =>
    show(centre - (centre - state.view.from) * factor, centre + (state.view.to - centre) * factor);
  const pan = (share) => show(state.view.from + share * (state.view.to - state.view.from), state.view.to + share * (state.view.to - state.view.from));

  const choose = (found) => {
    if (!found) return;
    state.chosen = found;
    const start = found.row.start[found.at], end = start + found.row.took[found.at], length = state.view.to - state.view.from;
    if (end < state.view.from || start > state.view.to) show((start + end - length) / 2, (start + end + length) / 2);
    else draw();
    said.textContent = words(found).replaceAll("\n", ", "); // it may take a line more, and move the canvas
    const box = canvas.getBoundingClientRect();
    tell(found, box.left + Math.max(x(start), gutter()), box.top + found.row.top + found.row.height - 8);
  };
  const neighbour = (step) => {
    const row = state.chosen ? state.chosen.row : state.data.rows[0];
    if (!row) return;
    const at = state.chosen ? state.chosen.at + step : Math.min(after(row, state.view.from), row.start.length - 1);
    choose(at >= 0 && at < row.start.length ? { row, at } : null);
  };
  const otherRow = (step) => {
    const index = state.data.rows.indexOf(state.chosen ? state.chosen.row : state.data.rows[0]) + (state.chosen ? step : 0);
    const row = state.data.rows[index], when = state.chosen ? state.chosen.row.start[state.chosen.at] : state.view.from;
    if (row) choose({ row, at: Math.max(after(row, when) - 1, 0) });
  };

  const followLaunch = () => {
    const [pair] = state.chosen ? launchesOf(state.chosen) : [];
    if (!pair) return;
    const [from, to] = pair, atEnd = to.row === state.chosen.row && to.at === state.chosen.at;
    choose(atEnd ? from : to);
  };

  const KEYS = {
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6),
    0: () => show(state.whole.from, state.whole.to), Home: () => show(state.whole.from, state.whole.to), n: () => neighbour(1), p: () => neighbour(-1),
    ArrowDown: () => otherRow(1), ArrowUp: () => otherRow(-1),
    Enter: () => state.chosen && show(state.chosen.row.start[state.chosen.at] - state.chosen.row.took[state.chosen.at], state.chosen.row.start[state.chosen.at] + 2 * state.chosen.row.took[state.chosen.at]),
    l: () => followLaunch(),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  canvas.addEventListener("wheel", (event) => {
    // without the focus a wheel scrolls the page
    if (document.activeElement !== canvas && !event.ctrlKey) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / room());
    else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), time(event.clientX - canvas.getBoundingClientRect().left));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    drag = { at: event.clientX, view: state.view, selects: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return tell(under(event), event.clientX, event.clientY);
    if (drag.selects) {
      const edge = canvas.getBoundingClientRect().left, times = [drag.at, event.clientX].map((at) => time(at - edge));
      return api.select(Math.max(Math.min(...times), state.whole.from), Math.min(Math.max(...times), state.whole.to));
    }
    const moved = ((drag.at - event.clientX) / room()) * (drag.view.to - drag.view.from);
    tip.hidden = true;
    return show(drag.view.from + moved, drag.view.to + moved);
  });
  canvas.addEventListener("pointerup", (event) => {
    const clicked = drag && !drag.selects && Math.abs(event.clientX - drag.at) < 3;
    drag = null;
    if (clicked) choose(under(event));
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => zoom(0.3, time(event.clientX - canvas.getBoundingClientRect().left)));
  document.getElementById("lanes-in").addEventListener("click", () => zoom(0.5));
  document.getElementById("lanes-out").addEventListener("click", () => zoom(2));
  document.getElementById("lanes-all").addEventListener("click", () => show(state.whole.from, state.whole.to));

  const api = {
    state, load, choose, show, draw, duration, filled, KEYS, canvas, words,
    hide: () => { tip.hidden = true; },
    select: () => {},
    open: (data) => { load(data); paint(); show(state.whole.from, state.whole.to); tip.hidden = true; },
  };

  const paint = () => {
    const style = getComputedStyle(root);
    pageInk = style.getPropertyValue("--ink");
    colours = state.data.keys.map((key) => {
      const fill = style.getPropertyValue(key.colour).trim() || "#888888";
      const [red, green, blue] = [1, 3, 5].map((at) => parseInt(fill.slice(at, at + 2), 16));
      return { fill, ink: 0.3 * red + 0.6 * green + 0.1 * blue > 140 ? "#1b1f24" : "#ffffff" };
    });
    draw();
  };
  const fromAddress = () => {
    const asked = /^#at=([\d.]+),([\d.]+)$/.exec(location.hash);
    if (asked) show(Number(asked[1]) * 1000, Number(asked[2]) * 1000);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  addEventListener("resize", draw);
  addEventListener("hashchange", fromAddress);
  load(JSON.parse(document.getElementById("lanes-data").textContent));
  paint();
  show(state.whole.from, state.whole.to);
  fromAddress();
  return api;
})();
