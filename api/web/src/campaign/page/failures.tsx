/** The failed trials by cause, and what to do about each. */
import type { Analysis, CampaignView, TrialBrief } from "../../api/types";
import { FailureChart } from "../charts/failure_chart";

export interface FailuresTabProps {
  campaign: CampaignView;
  trials: readonly TrialBrief[];
  analysis: Analysis | undefined;
  onChange: () => void;
}

export function FailuresTab({ analysis }: FailuresTabProps) {
  return <FailureChart analysis={analysis} />;
}
