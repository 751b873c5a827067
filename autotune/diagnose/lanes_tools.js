// What a reader does with the lanes: menus of ranks and steps, events found by name, sums of a selected stretch.
(() => {
  const { state, canvas, duration } = lanes, root = document.documentElement;
  const views = JSON.parse(document.getElementById("lanes-views").textContent);
  const byId = (name) => document.getElementById(`lanes-${name}`);
  const ranks = byId("rank"), steps = byId("step"), find = byId("find"), sums = byId("sums"), said = byId("said");
  const first = document.getElementById("lanes-data").textContent, NAMES_SHOWN = 12;

  const fill = (menu, names) => menu.replaceChildren(...names.map((name, at) => new Option(name, at)));
  const unpacked = async (text) => {
    const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  };
  const open = async () => {
    const { packed } = views[ranks.value].steps[steps.value];
    lanes.open(packed === null ? JSON.parse(first) : await unpacked(packed));
    clearSums();
    if (find.value) look();
    root.dataset.lanesView = `${ranks.value},${steps.value}`;
  };
  const fillSteps = () => fill(steps, views[ranks.value].steps.map((one) => one.step));
  fill(ranks, views.map((one) => one.rank));
  ranks.value = views.findIndex((one) => one.steps.some((step) => step.packed === null));
  fillSteps();
  steps.value = views[ranks.value].steps.findIndex((step) => step.packed === null);
  ranks.addEventListener("change", () => { fillSteps(); open(); });
  steps.addEventListener("change", open);

  // events whose name holds the text, in order of time
  let matches = [], current = -1;
  const look = () => {
    const text = find.value.trim().toLowerCase();
    state.found = null;
    matches = [];
    current = -1;
    if (text) {
      state.found = new Set(state.data.names.flatMap((name, code) => (name.toLowerCase().includes(text) ? [code] : [])));
      for (const row of state.data.rows) {
        row.name.forEach((code, at) => { if (state.found.has(code)) matches.push({ row, at, when: row.start[at] }); });
      }
      matches.sort((one, other) => one.when - other.when);
      said.textContent = `${matches.length.toLocaleString("en")} found`;
    }
    root.dataset.lanesFound = matches.length;
    lanes.draw();
  };
  const go = (step) => {
    if (!matches.length) return;
    current = (current + step + matches.length) % matches.length;
    lanes.choose(matches[current]);
    said.textContent = `${(current + 1).toLocaleString("en")} of ${matches.length.toLocaleString("en")}: ${said.textContent}`;
  };
  find.addEventListener("input", look);
  find.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); go(event.shiftKey ? -1 : 1); }
    if (event.key === "Escape") { find.value = ""; look(); canvas.focus(); }
  });
  byId("next").addEventListener("click", () => go(1));
  byId("before").addEventListener("click", () => go(-1));

  // of a stretch: for each lane the time of each kind, then the names with most time
  const add = (into, key, us, count) => {
    const row = into.get(key) || { us: 0, count: 0 };
    into.set(key, { us: row.us + us, count: row.count + count });
  };
  const summed = (from, to) => {
    const kinds = new Map(), names = new Map();
    for (const row of state.data.rows) {
      for (let at = 0; at < row.start.length && row.start[at] < to; at++) {
        const inside = Math.min(row.start[at] + row.took[at], to) - Math.max(row.start[at], from);
        if (inside <= 0) continue;
        const us = inside * lanes.filled(row, at), count = row.count.length ? row.count[at] : 1;
        const lane = state.data.lanes[row.lane];
        if (lane.place !== "host" || row.row === 0) add(kinds, `${row.lane}|${row.key[at]}`, us, count);
        if (lane.place !== "idle") add(names, `${row.lane}|${row.name[at]}`, us, count);
      }
    }
    return { kinds, names };
  };
  const table = (title, groups, words, whole, most) => {
    const rows = [...groups].sort((one, other) => other[1].us - one[1].us).slice(0, most);
    const cells = rows.map(([key, { us, count }]) => {
      const [lane, code] = key.split("|").map(Number);
      return [state.data.lanes[lane].label, words(code), duration(us), `${(100 * us / whole).toFixed(1)} %`, count.toLocaleString("en")];
    });
    const drawn = document.createElement("table"), head = drawn.createTHead().insertRow();
    ["lane", title, "time", "of the window", "events"].forEach((name, at) => {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      cell.className = at > 1 ? "number" : "";
      head.append(cell);
    });
    const body = drawn.createTBody();
    for (const row of cells) {
      const line = body.insertRow();
      row.forEach((text, at) => { const cell = line.insertCell(); cell.textContent = text; cell.className = at > 1 ? "number" : ""; });
    }
    return drawn;
  };
  const clearSums = () => { state.selected = null; sums.hidden = true; sums.replaceChildren(); };
  lanes.select = (from, to) => {
    if (to - from < 1) return;
    state.selected = { from, to };
    lanes.hide();
    const { kinds, names } = summed(from, to), heading = document.createElement("h3");
    heading.textContent = `Selected: ${duration(to - from)}, from ${duration(from)} to ${duration(to)}`;
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.append(
      table("kind", kinds, (code) => state.data.keys[code].words, to - from, 40),
      table("longest names", names, (code) => state.data.names[code], to - from, NAMES_SHOWN),
    );
    sums.replaceChildren(heading, scroll);
    sums.hidden = false;
    root.dataset.lanesSelected = `${Math.round(from)},${Math.round(to)}`;
    root.dispatchEvent(new CustomEvent("tables", { bubbles: true }));
    lanes.draw();
  };
  lanes.KEYS.s = () => {
    const one = state.chosen;
    if (one) lanes.select(Math.max(one.row.start[one.at], 0), one.row.start[one.at] + one.row.took[one.at]);
    else lanes.select(state.view.from, state.view.to);
  };
  lanes.KEYS["/"] = () => find.focus();
  lanes.KEYS.Escape = () => {
    state.chosen = null;
    lanes.hide();
    clearSums();
    lanes.draw();
  };
})();
