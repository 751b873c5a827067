// What every page does: tables sort by a click and are copied as CSV, marks of figures are reached with the keyboard.
(() => {
  const SCALES = { s: 1e6, ms: 1e3, µs: 1, ns: 1e-3 }, NONE = "–", INNER = "·";
  const HINT = "Left and right arrows walk through its marks";

  // a cell's number, times in microseconds, and what it is a number of; null for words
  const read = (text) => {
    const found = /^([+−-]?)([\d,]*\.?\d+)\s*([^\d\s].*)?$/.exec(text.trim());
    if (!found) return null;
    const [, sign, digits, unit = ""] = found, value = Number(digits.replaceAll(",", "")) * (SCALES[unit] || 1);
    return { value: sign === "−" || sign === "-" ? -value : value, of: SCALES[unit] ? "µs" : unit };
  };
  const text = (row, column) => (row.cells[column] ? row.cells[column].textContent.trim() : "");

  // rows that are part of the row before them go with it, headings of groups stay where they are
  const families = (rows) => {
    const found = [];
    for (const row of rows) {
      if (found.length && text(row, 0).startsWith(INNER)) found[found.length - 1].push(row);
      else found.push([row]);
    }
    return found;
  };
  const sort = (table, column, down) => {
    const compare = (one, other) => {
      const [a, b] = [one, other].map((family) => text(family[0], column)), [x, y] = [read(a), read(b)];
      if (x && y) return down ? y.value - x.value : x.value - y.value;
      if (x || y) return x ? -1 : 1;
      return down ? b.localeCompare(a) : a.localeCompare(b);
    };
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => !row.querySelector("th"));
      body.append(...families(rows).sort(compare).flat());
    }
    table.querySelectorAll("thead th").forEach((cell, at) => {
      if (at === column) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
  };

  // a column of numbers of one kind becomes plain numbers with their unit in its name
  const csv = (table) => {
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]).filter((row) => !row.querySelector("th"));
    const heads = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    const columns = heads.map((name, at) => {
      const cells = rows.map((row) => text(row, at)), numbers = cells.map(read);
      const kinds = new Set(numbers.filter(Boolean).map((one) => one.of));
      const plain = kinds.size === 1 && cells.every((cell, place) => numbers[place] || cell === NONE || cell === "");
      if (!plain) return [name, ...cells];
      const [unit] = kinds;
      return [unit ? `${name} (${unit})` : name, ...numbers.map((one) => (one ? String(Number(one.value.toPrecision(12))) : ""))];
    });
    const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
    return [heads, ...rows].map((_, at) => columns.map((column) => quoted(column[at])).join(",")).join("\n");
  };
  const copy = async (button, table) => {
    const written = csv(table);
    try {
      await navigator.clipboard.writeText(written);
    } catch {
      const area = document.createElement("textarea");
      area.value = written;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy as CSV"; }, 1500);
  };

  const equip = (table) => {
    if (table.dataset.equipped || !table.tHead) return;
    table.dataset.equipped = "yes";
    table.querySelectorAll("thead th").forEach((cell, column) => {
      if (!cell.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.textContent = cell.textContent;
      button.addEventListener("click", () => {
        const numbers = cell.classList.contains("number"), was = cell.getAttribute("aria-sort");
        sort(table, column, was ? was === "ascending" : numbers);
      });
      cell.replaceChildren(button);
    });
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy as CSV";
    button.addEventListener("click", () => copy(button, table));
    table.after(button);
  };
  const equipAll = () => document.querySelectorAll("table").forEach(equip);
  document.documentElement.addEventListener("tables", equipAll);
  equipAll();

  // one stop of the tab key a figure; its marks are walked through with the arrows
  const tip = document.getElementById("tip") || document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip", hidden: true }));
  tip.setAttribute("role", "status");
  const tell = (mark) => {
    const box = mark.getBoundingClientRect();
    tip.textContent = mark.querySelector(":scope > title").textContent;
    tip.hidden = false;
    tip.style.left = `${Math.max(8, Math.min(box.left + box.width / 2, innerWidth - tip.offsetWidth - 12)) + scrollX}px`;
    tip.style.top = `${box.bottom + 8 + scrollY}px`;
  };
  document.querySelectorAll("svg[role=img]").forEach((figure) => {
    const marks = [...figure.querySelectorAll("title")].map((title) => title.parentElement);
    if (!marks.length || figure.querySelector("[tabindex]")) return;
    let at = -1;
    const go = (next) => {
      marks.forEach((mark) => mark.classList.remove("current"));
      at = Math.max(0, Math.min(next, marks.length - 1));
      marks[at].classList.add("current");
      tell(marks[at]);
    };
    figure.tabIndex = 0;
    figure.setAttribute("aria-description", HINT);
    figure.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: marks.length - 1 };
      if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      go(steps[event.key]);
    });
    figure.addEventListener("blur", () => {
      at = -1;
      tip.hidden = true;
      marks.forEach((mark) => mark.classList.remove("current"));
    });
  });
})();
