// Finds pages by words of their title and first sentence; no network, works from a folder.
const PAGES = [/* pages */];
const input = document.getElementById("search"), found = document.getElementById("found");
const rank = ([path, title], words) =>
  (title.toLowerCase() === words.join(" ") ? 0 : title.toLowerCase().includes(words[0]) ? 1 : 2) + title.length / 1000;
input.addEventListener("input", () => {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = words.length
    ? PAGES.filter((page) => words.every((word) => page.join(" ").toLowerCase().includes(word)))
        .sort((a, b) => rank(a, words) - rank(b, words)).slice(0, 20)
    : [];
  found.replaceChildren(...hits.map(([path, title, summary]) => {
    const item = document.createElement("li"), link = document.createElement("a"), said = document.createElement("span");
    link.href = input.dataset.up + path;
    link.textContent = title;
    said.textContent = summary;
    item.append(link, said);
    return item;
  }));
  found.hidden = !hits.length;
});
if (matchMedia("(max-width: 56rem)").matches) document.getElementById("pages").open = false;
