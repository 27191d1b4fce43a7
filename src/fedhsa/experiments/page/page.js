// Marks in the contents where the reader is, and opens what a link leads to; the page does without it.
(() => {
  const links = new Map([...document.querySelectorAll("nav a")].map(a => [decodeURIComponent(a.hash.slice(1)), a]));
  const places = [...document.querySelectorAll(":is(h2, h3)[id]")].filter(heading => links.has(heading.id));
  let marked = null;
  const mark = () => {
    const above = places.map(heading => [heading.getBoundingClientRect().top, heading.id]).filter(([top]) => top < 100);
    const [last] = above.at(-1) ?? [];
    const here = links.get(above.find(([top]) => last - top < 5)?.[1]); // of two that stand side by side, the first
    if (here === marked) return;
    marked?.removeAttribute("aria-current");
    here?.setAttribute("aria-current", "location");
    const nav = here?.closest("nav");
    if (nav && getComputedStyle(nav).position === "sticky") {
      const top = here.offsetTop - nav.offsetTop;
      if (top < nav.scrollTop || top > nav.scrollTop + nav.clientHeight - 40) nav.scrollTop = top - nav.clientHeight / 3;
    }
    marked = here;
  };
  const watch = new IntersectionObserver(mark, {rootMargin: "-100px 0px 0px 0px"});
  places.forEach(heading => watch.observe(heading));
  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let box = target?.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    target?.scrollIntoView();
    mark();
  };
  addEventListener("hashchange", open);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(box => { box.open = true; }));
  if (location.hash) open();
})();
