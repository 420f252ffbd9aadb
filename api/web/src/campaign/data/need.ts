/** What a plan needs, as the service predicts it. */
import { withQuery } from "../../api/client";
import { useResource } from "../../api/resource";
import type { Explanation, Plan } from "../../api/types";
import { campaignPath } from "./paths";

/** campaign: null asks nothing. */
export function useNeed(campaign: string | null, { knobs = {}, ...axes }: Plan): Explanation["prediction"] | undefined {
  const knob = Object.entries(knobs).map((one) => one.join(":"));
  return useResource<Explanation>(campaign && withQuery(`${campaignPath(campaign)}/space/why`, { ...axes, knob })).data?.prediction;
}
