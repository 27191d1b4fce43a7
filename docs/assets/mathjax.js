// Formulas: `\(...\)` and `\[...\]`, as the Markdown extension leaves them, and nothing else on the page.
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]], processEscapes: true, processEnvironments: true },
  output: { displayOverflow: "linebreak", scale: 0.94 },
  options: { ignoreHtmlClass: ".*", processHtmlClass: "arithmatex", enableMenu: false },
};
