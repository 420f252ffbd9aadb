/** What `rest.ts` holds, each as a component whose code comes when it is first shown. */
import { lazy } from "./ui/lazy";

const rest = () => import("./rest");
export const AboutTab = lazy(async () => (await rest()).AboutTab);
export const ChartsTab = lazy(async () => (await rest()).ChartsTab);
export const Compare = lazy(async () => (await rest()).Compare);
export const Create = lazy(async () => (await rest()).Create);
export const FailuresTab = lazy(async () => (await rest()).FailuresTab);
export const FitPage = lazy(async () => (await rest()).FitPage);
export const TrialComparison = lazy(async () => (await rest()).TrialComparison);
export const TrialPage = lazy(async () => (await rest()).TrialPage);
export const UseDialog = lazy(async () => (await rest()).UseDialog);
