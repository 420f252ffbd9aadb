/** The pages beside the list, a campaign's and a trial's: they come as a file of their own, when one is asked for. */
export { Compare } from "./pages/compare";
export { Create } from "./pages/create";
export { FitPage } from "./pages/fit";
