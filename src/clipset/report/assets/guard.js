/* Collects errors in <html data-errors>, where tests read them. */
(() => {
  const note = (text) => {
    const root = document.documentElement;
    root.dataset.errors = (root.dataset.errors ? root.dataset.errors + "; " : "") + text;
  };
  addEventListener("error", (event) => note(event.message || "a part of the page did not load"), true);
  addEventListener("unhandledrejection", (event) => note(String(event.reason)));
  addEventListener("securitypolicyviolation", (event) => note("refused: " + event.violatedDirective));
})();
