// Sphinx inserts this before its search (html_search_scorer). It is the default scorer, but ranks reference and history pages
// below tutorials and guides.
const BELOW = /^(changelog|decisions\/|contributing|kernel|architecture|upkeep|durability|a-z$|claude$|from-)/;
const ABOVE = /^(start|agent|approvals|cookbook|serving|workflows|permissions|tools|testing)$/;

var Scorer = {
  score: ([docname, , , , score]) => score + (ABOVE.test(docname) ? 2 : BELOW.test(docname) ? -4 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// Browsers do not let a page opened from a file fetch another one, so excerpts are shown only with a server.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
