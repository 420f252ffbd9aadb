/** What the first look at the list or a campaign does not show: it comes as a file of its own, when it is asked for. */
export { ChartsTab } from "./campaign/charts/charts_tab";
export { AboutTab } from "./campaign/page/about";
export { UseDialog } from "./campaign/page/exports";
export { FailuresTab } from "./campaign/page/failures";
export { TrialComparison } from "./campaign/page/trial_comparison";
export { Compare } from "./pages/compare";
export { Create } from "./pages/create";
export { FitPage } from "./pages/fit";
export { TrialPage } from "./trial/page";
