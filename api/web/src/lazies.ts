/** What the two `rest.ts` hold, and the page of a trial, each as a component whose code comes when it is first shown. */
import { lazy } from "./ui/lazy";

const ofCampaign = () => import("./campaign/rest");
export const AboutTab = lazy(async () => (await ofCampaign()).AboutTab);
export const ChartsTab = lazy(async () => (await ofCampaign()).ChartsTab);
export const FailuresTab = lazy(async () => (await ofCampaign()).FailuresTab);
export const TrialComparison = lazy(async () => (await ofCampaign()).TrialComparison);
export const UseDialog = lazy(async () => (await ofCampaign()).UseDialog);
const pages = () => import("./rest");
export const Compare = lazy(async () => (await pages()).Compare);
export const Create = lazy(async () => (await pages()).Create);
export const FitPage = lazy(async () => (await pages()).FitPage);
export const TrialPage = lazy(async () => (await import("./trial/page")).TrialPage);
