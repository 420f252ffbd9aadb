/** What the first look at a campaign does not show: it comes as a file of its own, when it is asked for. */
export { ChartsTab } from "./charts/charts_tab";
export { AboutTab } from "./page/about";
export { UseDialog } from "./page/exports";
export { FailuresTab } from "./page/failures";
export { TrialComparison } from "./page/trial_comparison";
