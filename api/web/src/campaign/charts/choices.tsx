/** What a person chooses of a chart, kept in the address. */
import type { VNode } from "preact";
import { setFilters, useFilter, useFilters } from "../../filters";
import { short } from "../../format";
import { Chip, Switch } from "../../ui/basics";
import type { Dimension } from "../data/values";
import { type Axis, numbers, whole } from "./axes";

type Named = Pick<Dimension, "name" | "label"> & { readonly dimension?: Dimension };

/** One of all, at first this one, and the list to choose from. */
export function useChoice<T extends Named>(key: string, label: string, all: readonly T[], first: T): [T, VNode] {
  const [name, choose] = useFilter(key);
  const chosen = all.find((one) => one.name === name) ?? first;
  const titleOf = (one: Named & { title?: string }) => one.title ?? one.dimension?.title;
  return [
    chosen,
    <select aria-label={label} title={titleOf(chosen)} value={chosen.name} onChange={(event) => choose(event.currentTarget.value)}>
      {all.map((one) => (
        <option key={one.name} value={one.name} title={titleOf(one)}>{one.label}</option>
      ))}
    </select>,
  ];
}

/** Whether an axis has a log scale, and the button for it. */
export function useLog(axis: string, words: string): [boolean, VNode] {
  const all = useFilters().getAll("log");
  const on = all.includes(axis);
  const toggle = () => setFilters({ log: on ? all.filter((one) => one !== axis) : [...all, axis] });
  return [on, <Chip pressed={on} onClick={toggle}>{words}</Chip>];
}

/** Whether device-hours lie along the best so far, its axis, and the switch for it. */
export function useHours(): [boolean, (along: readonly number[]) => Axis, VNode] {
  const [against, choose] = useFilter("against");
  const hours = against === "device_hours";
  return [
    hours,
    (along) => (hours ? numbers(along, { title: "device-hours", format: short, fromZero: true }) : whole([0, ...along], "trials")),
    <Switch label="Horizontal axis" options={[["", "by trial"], ["device_hours", "by device-hour"]] as const} value={hours ? against : ""} onChange={choose} />,
  ];
}
