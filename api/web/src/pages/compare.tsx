/** Campaigns beside each other, each in its colour: what they found and how soon, how one model scales, and how their specs
 * differ. */
import { useEffect, useState } from "preact/hooks";
import { get, withQuery } from "../api/client";
import { useResource } from "../api/resource";
import type { CampaignPage, CampaignView, ComparedCampaign, Comparison, Estimate } from "../api/types";
import { doublings, numbers } from "../campaign/charts/axes";
import { useHours } from "../campaign/charts/choices";
import { goalOf, worded } from "../campaign/data/goal";
import { campaignPath } from "../campaign/data/paths";
import { setFilters, useFilters } from "../filters";
import { bareObjective, count, interval, number, objective, share, short, UNKNOWN } from "../format";
import { href } from "../router";
import { Card, Chip, Prose } from "../ui/basics";
import { JsonLink } from "../ui/json";
import { Menu } from "../ui/menu";
import { EmptyState, ErrorState, LoadingState } from "../ui/states";
import { TableFrame } from "../ui/table";
import { Title } from "../ui/title";
import { CAMPAIGN_TONES } from "../words";
import { Found, MOST_COMPARED, toggled } from "./campaign_table";
import { CurveChart } from "./curve_chart";
import { scalesOf } from "./scales_of";
import { specDifferences } from "./spec_differences";
import { Table } from "./table_card";
import "./compare.css";

const FEWEST = 2;
const POLL_MS = 10_000;

export function Compare() {
  const chosen = [...new Set(useFilters().getAll("campaign"))].slice(0, MOST_COMPARED);
  return (
    <>
      <div class="page-head">
        <Title>Compare campaigns</Title>
        <div class="push"><Chooser chosen={chosen} /></div>
      </div>
      {chosen.length < FEWEST ? (
        <Card>
          <EmptyState title={chosen.length === 0 ? "Choose two campaigns or more" : "Choose one more campaign"}>
            <p class="muted">Campaigns of one model on different numbers of devices also show how its speed grows.</p>
          </EmptyState>
        </Card>
      ) : (
        <Compared ids={chosen} />
      )}
    </>
  );
}

const hueOf = (at: number) => `var(--series-${at + 1})`;

function Swatch({ at }: { at: number }) {
  return <span class="swatch" style={{ "--hue": hueOf(at) }} aria-hidden="true" />;
}

function Chooser({ chosen }: { chosen: string[] }) {
  const [typed, setTyped] = useState("");
  const { data, problem, refresh } = useResource<CampaignPage>("campaigns?page_size=200");
  const holds = ({ id, name, model, cluster }: CampaignView) => `${id} ${name} ${model} ${cluster}`.toLowerCase().includes(typed.toLowerCase());
  const shown = (data?.campaigns ?? []).filter((campaign) => chosen.includes(campaign.id) || holds(campaign));
  return (
    <Menu label="Choose campaigns" stays testid="chooser">
      <input type="search" aria-label="Find campaigns" placeholder="Name, model or cluster" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
      {problem && !data && <ErrorState problem={problem} onRetry={refresh} />}
      {data && shown.length === 0 && <p class="muted">There are none.</p>}
      <div class="choices">
        {shown.map(({ id, model, cluster, nodes }) => (
          <label key={id}>
            <input type="checkbox" checked={chosen.includes(id)} disabled={!chosen.includes(id) && chosen.length >= MOST_COMPARED} onChange={() => setFilters({ campaign: toggled(chosen, id) })} />
            <span>
              {id} <span class="muted small">{model}, {cluster}, {count(nodes)} {nodes === 1 ? "node" : "nodes"}</span>
            </span>
          </label>
        ))}
      </div>
    </Menu>
  );
}

interface Row extends ComparedCampaign {
  readonly at: number;
  readonly view: CampaignView;
}

function Compared({ ids }: { ids: string[] }) {
  const path = withQuery("comparison", { campaign: ids });
  const { data, problem, refresh } = useResource<Comparison>(path, POLL_MS);
  const [views, setViews] = useState<CampaignView[]>([]);
  // They are read again whenever their comparison has changed.
  useEffect(() => {
    const aborter = new AbortController();
    void Promise.all(ids.map((id) => get<CampaignView>(campaignPath(id), aborter.signal))).then(setViews, () => {});
    return () => aborter.abort();
  }, [data]);
  const rows = (data?.campaigns ?? []).flatMap((row): Row[] => {
    const view = views.find(({ id }) => id === row.id);
    return view ? [{ ...row, view, at: ids.indexOf(row.id) }] : [];
  });
  if (!data || rows.length < ids.length) return <Card>{problem ? <ErrorState problem={problem} onRetry={refresh} /> : <LoadingState lines={10} height={30} />}</Card>;
  const scales = scalesOf(rows);
  return (
    <>
      <Card title="Recommended" aside={<JsonLink path={path} />}>
        <ComparisonTable rows={rows} scales={scales.length > 0} />
      </Card>
      <div class="compared-charts">
        <Progress rows={rows.filter(({ view }) => view.spec.objective === data.objective)} />
        {scales.length > 0 && <Scaling rows={rows} scales={scales} />}
      </div>
      <Differences rows={rows} />
      {data.notes.length > 0 && (
        <Card title="Notes" testid="notes">
          <ul class="list">
            {data.notes.map((note) => (
              <li key={note}>
                <Prose text={note} />
              </li>
            ))}
          </ul>
        </Card>
      )}
    </>
  );
}

/** "measured", or "simulated": of all, or of some. */
function madeBy(rows: readonly Row[]): string {
  const simulated = rows.filter((row) => row.simulated).length;
  return simulated === 0 ? "measured" : simulated === rows.length ? "simulated" : "measured or simulated";
}

function Progress({ rows }: { rows: Row[] }) {
  const [hours, across, hoursSwitch] = useHours();
  const goal = goalOf(rows[0]!.view);
  const curves = rows.map(({ id, at, simulated, progress }) => ({
    hue: hueOf(at),
    stepped: true,
    points: progress.map((point) => ({
      x: hours ? point.device_hours : point.done,
      y: point.value,
      words: `${id}: ${objective(point.value, goal.unit)} ${simulated ? "simulated " : ""}after ${hours ? `${number(point.device_hours)} device-hours` : `${point.done} trials`}`,
    })),
  }));
  const all = curves.flatMap(({ points }) => points);
  return (
    <Card title="Best first run so far" aside={hoursSwitch}>
      <CurveChart
        testid="progress-chart"
        label={`Best first run so far, ${madeBy(rows)}`}
        x={across(all.map((point) => point.x))}
        y={numbers(all.map(({ y }) => y), { title: `${goal.label}, ${madeBy(rows)}`, format: (value, digits) => bareObjective(value, goal.unit, digits), room: 0.06 })}
        curves={curves}
      />
    </Card>
  );
}

function said(rows: readonly Row[], text: string): string {
  return worded({ samples: rows.every((row) => row.speed_unit.startsWith("samples")) }, text);
}

/** Of one model on different numbers of devices. */
function Scaling({ rows, scales }: { rows: Row[]; scales: Row[][] }) {
  const unit = said(rows, "tokens/s");
  const made = madeBy(scales.flat());
  const spots = (row: Row, speed: Estimate | undefined, how: string) =>
    speed ? [{ x: row.devices, y: speed.value, words: `${row.id}: ${short(speed.value)} ${unit} ${how} on ${row.devices} devices (${interval(speed.low, speed.high, short)})` }] : [];
  const own = (row: Row) => spots(row, row.recommended?.tokens_per_s, row.simulated ? "simulated" : "measured");
  const curves = scales.flatMap((group) => [
    { look: "projected", points: group.flatMap((row) => spots(row, row.projected?.tokens_per_s, "projected")) },
    { look: "joined", points: group.flatMap(own) },
    ...group.map((row) => ({ hue: hueOf(row.at), points: own(row) })),
  ]);
  const all = curves.flatMap(({ points }) => points);
  return (
    <Card title="Scaling" aside={<span class="muted small">{unit} of the recommended settings; dashed: projected from the smallest</span>}>
      <CurveChart
        testid="speed-chart"
        label={`${said(rows, "Tokens per second")} by devices, ${made}`}
        x={doublings(all.map(({ x }) => x), "devices")}
        y={numbers(all.map(({ y }) => y), { title: `${unit}, ${made}`, format: short, fromZero: true, room: 0.05 })}
        curves={curves}
      />
    </Card>
  );
}

function ComparisonTable({ rows, scales }: { rows: Row[]; scales: boolean }) {
  return (
    <TableFrame label="Comparison" testid="comparison">
      <thead>
        <tr>
          <th scope="col">Campaign</th>
          <th scope="col">Devices</th>
          <th scope="col">Recommended, and its gain over the baseline</th>
          <th scope="col" class="num">All devices, {said(rows, "tokens/s")}</th>
          {scales && <th scope="col" class="num" title="Speed per device, against the smallest of its kind">Efficiency</th>}
          {scales && <th scope="col" class="num">Projected</th>}
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.id} data-testid="compared">
            <td class="campaign-name">
              <Swatch at={row.at} /> <a href={href({ page: "campaign", id: row.id })}>{row.id}</a>
              <div class="small muted">{row.model}, {row.cluster}</div>
              <Chip tone={CAMPAIGN_TONES[row.state]}>{row.state}</Chip>
            </td>
            <td class="nowrap">
              {count(row.devices)}
              <div class="small muted">{count(row.nodes)} {row.nodes === 1 ? "node" : "nodes"}</div>
            </td>
            <td class="campaign-found"><Found campaign={row.view} /></td>
            <Cell estimate={row.recommended?.tokens_per_s} format={short} />
            {scales && <Cell estimate={row.efficiency} format={share} note={row.efficiency_against === row.id ? "the reference" : row.efficiency_against && `of ${row.efficiency_against}`} />}
            {scales && <Cell estimate={row.projected?.tokens_per_s} format={short} note={row.projected?.efficiency && `${share(row.projected.efficiency.value)} efficiency`} />}
          </tr>
        ))}
      </tbody>
    </TableFrame>
  );
}

function Cell({ estimate, format, note }: { estimate: Estimate | null | undefined; format: typeof share; note?: string | null | undefined }) {
  return (
    <td class="num">
      {estimate ? format(estimate.value) : UNKNOWN}
      {estimate && estimate.low < estimate.high && <div class="small muted">{interval(estimate.low, estimate.high, format)}</div>}
      {note && <div class="small muted">{note}</div>}
    </td>
  );
}

function Differences({ rows }: { rows: Row[] }) {
  const differences = specDifferences(rows.map(({ view }) => view.spec));
  if (differences.length === 0) return null;
  return (
    <Table title="Differences of the specs" testid="differences" heads={["Key", ...rows.map(({ id, at }) => <><Swatch at={at} /> {id}</>)]} words={() => true}>
      {differences.map(({ path, values }) => [<code>{path}</code>, ...values])}
    </Table>
  );
}
