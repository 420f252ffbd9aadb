/** Campaigns beside each other: how speed grows with the nodes. What is projected is drawn dashed, and named so. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { withQuery } from "../api/client";
import { useResource } from "../api/resource";
import type { CampaignPage, CampaignView, ComparedCampaign, Comparison, Estimate } from "../api/types";
import { setFilters, useFilters } from "../filters";
import { count, interval, share, short, UNKNOWN } from "../format";
import { worded } from "../campaign/data/goal";
import { href } from "../router";
import { Card, Chip, Prose } from "../ui/basics";
import { JsonLink } from "../ui/json";
import { EmptyState, ErrorState, LoadingState } from "../ui/states";
import { TableFrame } from "../ui/table";
import { Title } from "../ui/title";
import { CAMPAIGN_TONES } from "../words";
import { ScalingChart, type Point } from "./scaling_chart";
import "./compare.css";

const FEWEST = 2;
const MOST = 20;
const POLL_MS = 10_000;

export function Compare() {
  const chosen = useFilters().getAll("campaign");
  const choose = (ids: string[]) => setFilters({ campaign: ids });
  return (
    <>
      <div class="page-head">
        <Title>Compare campaigns</Title>
      </div>
      <div class="compare">
        <Chooser chosen={chosen} onChoose={choose} />
        {chosen.length < FEWEST ? (
          <Card>
            <EmptyState title={chosen.length === 0 ? "Choose two campaigns or more" : "Choose one more campaign"}>
              <p class="muted">
                Campaigns of one model on different numbers of nodes show how its speed grows with them, and what of it is lost.
              </p>
            </EmptyState>
          </Card>
        ) : (
          <Compared ids={chosen} />
        )}
      </div>
    </>
  );
}

function Chooser({ chosen, onChoose }: { chosen: string[]; onChoose: (ids: string[]) => void }) {
  const [typed, setTyped] = useState("");
  const { data, problem, refresh } = useResource<CampaignPage>("campaigns?page_size=200");
  const wanted = typed.toLowerCase();
  const holds = ({ id, name, model, cluster }: CampaignView) => `${id} ${name} ${model} ${cluster}`.toLowerCase().includes(wanted);
  const shown = (data?.campaigns ?? []).filter((campaign) => chosen.includes(campaign.id) || holds(campaign));
  const toggle = (id: string) => onChoose(chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id]);
  const unseen = chosen.filter((id) => data && !data.campaigns.some((campaign) => campaign.id === id));
  return (
    <Card title="Campaigns" aside={<span class="muted small">{`${chosen.length} of ${MOST} chosen`}</span>} testid="chooser">
      <div class="pile stretch">
        <input type="search" data-filter aria-label="Find campaigns" placeholder="Name, model or cluster  ( / )" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        {unseen.length > 0 && (
          <div class="row">
            {unseen.map((id) => (
              <Chip key={id} onRemove={() => toggle(id)}>
                {id}
              </Chip>
            ))}
          </div>
        )}
        {problem && !data && <ErrorState problem={problem} onRetry={refresh} />}
        {!data && !problem && <LoadingState lines={6} height={34} />}
        {data && shown.length === 0 && <p class="muted">{data.campaigns.length ? "No campaign has that in its name." : "There are no campaigns yet."}</p>}
        <ul class="choices">
          {shown.map((campaign) => (
            <li key={campaign.id}>
              <label>
                <input
                  type="checkbox"
                  checked={chosen.includes(campaign.id)}
                  disabled={!chosen.includes(campaign.id) && chosen.length >= MOST}
                  onChange={() => toggle(campaign.id)}
                />
                <span>
                  {campaign.id}
                  <span class="muted small">
                    {campaign.model}, {campaign.cluster}, {nodes(campaign.nodes)}
                  </span>
                </span>
              </label>
            </li>
          ))}
        </ul>
      </div>
    </Card>
  );
}

function nodes(number: number): string {
  return number === 1 ? "1 node" : `${count(number)} nodes`;
}

function Compared({ ids }: { ids: string[] }) {
  const path = withQuery("comparison", { campaign: ids });
  const { data, problem, refresh } = useResource<Comparison>(path, POLL_MS);
  if (!data) return <Card>{problem ? <ErrorState problem={problem} onRetry={refresh} /> : <LoadingState lines={10} height={30} />}</Card>;
  const rows = [...data.campaigns].sort((a, b) => a.nodes - b.nodes || a.devices - b.devices);
  const simulated = rows.every((row) => row.simulated);
  return (
    <div class="compared">
      <div class="scaling-pair">
        <Card title="Speed" aside={<span class="muted small">{said(rows, "tokens")} per second of the recommended plans</span>}>
          <ScalingChart
            testid="speed-chart"
            label={said(rows, "Tokens per second")}
            measured={points(rows, ({ recommended }) => recommended?.tokens_per_s)}
            projected={points(rows, ({ projected }) => projected?.tokens_per_s)}
            format={short}
            unit={said(rows, "tokens/s")}
            simulated={simulated}
          />
        </Card>
        <Card title="Efficiency" aside={<span class="muted small">speed per device, against the smallest of its kind</span>}>
          <ScalingChart
            testid="efficiency-chart"
            label="Efficiency"
            measured={points(rows, ({ efficiency }) => efficiency)}
            projected={points(rows, ({ projected }) => projected?.efficiency)}
            format={(value) => share(value)}
            unit=""
            simulated={simulated}
            whole={1}
          />
        </Card>
      </div>
      <Card title="Numbers" aside={<JsonLink path={path} />}>
        <ComparisonTable rows={rows} />
      </Card>
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
    </div>
  );
}

function said(rows: ComparedCampaign[], text: string): string {
  return worded({ samples: rows.every((row) => row.speed_unit.startsWith("samples")) }, text);
}

function points(rows: ComparedCampaign[], pick: (row: ComparedCampaign) => Estimate | null | undefined): Point[] {
  return rows.flatMap((row) => {
    const estimate = pick(row);
    return estimate ? [{ nodes: row.nodes, name: row.simulated ? `${row.id}, simulated` : row.id, line: row.efficiency_against ?? row.id, ...estimate }] : [];
  });
}

function ComparisonTable({ rows }: { rows: ComparedCampaign[] }) {
  return (
    <TableFrame label="Comparison" testid="comparison">
      <thead>
        <tr>
          <th scope="col">Campaign</th>
          <th scope="col" class="num">
            Nodes
          </th>
          <th scope="col">Recommended</th>
          <th scope="col" class="num">
            {said(rows, "Tokens/s")}
          </th>
          <th scope="col" class="num">
            {said(rows, "Tokens/s/device")}
          </th>
          <th scope="col" class="num" title={said(rows, "Tokens/s per device of the best plan by its first run alone")}>
            Fastest once
          </th>
          <th scope="col" class="num">
            Efficiency
          </th>
          <th scope="col" class="num projected">
            Projected {said(rows, "tokens/s")}
          </th>
          <th scope="col" class="num projected">
            Projected efficiency
          </th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.id} data-testid="compared">
            <td class="campaign-name">
              <a href={href({ page: "campaign", id: row.id })}>{row.id}</a>
              <div class="small muted">
                {row.model}, {row.cluster}
              </div>
              <Chip tone={CAMPAIGN_TONES[row.state]}>{row.state}</Chip> {row.simulated && <Chip title="No device ran these trials">simulated</Chip>}
            </td>
            <td class="num">
              {count(row.nodes)}
              <div class="small muted">{count(row.devices)} devices</div>
            </td>
            <td>{row.recommended ? <BestLink row={row} best={row.recommended} /> : <span class="muted">nothing measured</span>}</td>
            <Cell estimate={row.recommended?.tokens_per_s} format={short} />
            <Cell estimate={row.recommended?.tokens_per_s_per_device} format={short} />
            <Cell estimate={row.fastest_once?.tokens_per_s_per_device} format={short} />
            <Cell estimate={row.efficiency_against === row.id ? null : row.efficiency} format={(value) => share(value)}>
              {row.efficiency_against === row.id ? "the measure" : row.efficiency_against && `against ${row.efficiency_against}`}
            </Cell>
            <Cell estimate={row.projected?.tokens_per_s} format={short} projected />
            <Cell estimate={row.projected?.efficiency} format={(value) => share(value)} projected />
          </tr>
        ))}
      </tbody>
    </TableFrame>
  );
}

function BestLink({ row, best }: { row: ComparedCampaign; best: NonNullable<ComparedCampaign["recommended"]> }) {
  return (
    <>
      <a href={href({ page: "trial", id: row.id, number: best.trial })}>trial {best.trial}</a>
      <div class="small muted">{best.plan_key}</div>
    </>
  );
}

interface CellProps {
  estimate: Estimate | null | undefined;
  format: (value: number | null | undefined) => string;
  projected?: boolean;
  children?: ComponentChildren;
}

function Cell({ estimate, format, projected = false, children }: CellProps) {
  return (
    <td class={projected ? "num projected" : "num"}>
      {estimate ? format(estimate.value) : !children && UNKNOWN}
      {estimate && estimate.low < estimate.high && <div class="small muted">{interval(estimate.low, estimate.high, format)}</div>}
      {children && <div class="small muted">{children}</div>}
    </td>
  );
}
