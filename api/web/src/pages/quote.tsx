/** What a campaign of this spec would meet and cost. Everything here is predicted, and says so. */
import { Prose } from "../ui/basics";
import type { Prediction, Quote, Range } from "../api/types";
import { misfit } from "./use_quote";
import { bytes, count, deviceTime, duration, interval, objective, probability, share, span, stepTime } from "../format";

export function Quote({ quote }: { quote: Quote }) {
  return (
    <div class="quote">
      {misfit(quote) && (
        <p class="mistake" role="status" data-testid="misfit">
          The baseline is not expected to fit: {bytes(quote.baseline?.peak_bytes.value)} of {bytes(quote.memory_bytes)} on a device. It would only fail.
        </p>
      )}
      <Legal quote={quote} />
      <Fit quote={quote} />
      <Best quote={quote} />
      <Cost quote={quote} />
      <Missing quote={quote} />
      <p class="muted small">
        Predicted for {count(quote.devices)} × {quote.device}, {quote.framework}; {quote.basis.words}.
      </p>
    </div>
  );
}

function Legal({ quote: { space, plans } }: { quote: Quote }) {
  const rejected = Object.entries(space.rejected)
    .filter(([, rejects]) => rejects > 0)
    .sort(([, a], [, b]) => b - a);
  return (
    <section>
      <h3>Settings</h3>
      <p>
        <strong data-testid="legal">{count(space.legal)}</strong> of {count(space.combinations)} {plans > space.legal ? "layouts" : "combinations"} are legal.
        {plans > space.legal && (
          <>
            {" "}
            With what their knobs can be, they make <strong data-testid="plans">{count(plans)}</strong> plans.
          </>
        )}
      </p>
      {rejected.length > 0 && (
        <details class="small">
          <summary>What rejects the others</summary>
          {rejected.map(([rule, rejects]) => `${rule} ${count(rejects)}`).join(", ")}. A combination may break several rules.
        </details>
      )}
    </section>
  );
}

const CLASSES = [
  ["sure", "surely (90 % or more)", { background: "var(--ok)" }],
  ["likely", "likely (50 to 90 %)", { background: "var(--running)" }],
  ["unlikely", "unlikely (10 to 50 %)", { background: "var(--failed)" }],
  ["hopeless", "hardly (below 10 %)", { background: "var(--pruned)" }],
] as const;

function Fit({ quote: { fit, space, memory_needs } }: { quote: Quote }) {
  if (fit === null) return null;
  const some = CLASSES.filter(([name]) => fit[name] > 0);
  return (
    <section>
      <h3>Memory</h3>
      <p>
        About <strong>{count(fit.expected)}</strong> of {count(space.legal)} are expected to fit.
      </p>
      <div class="fit-bar" role="img" aria-label={CLASSES.map(([name, words]) => `${fit[name]} fit ${words}`).join(", ")}>
        {some.map(([name, , look]) => (
          <div key={name} style={{ ...look, flex: fit[name] }} />
        ))}
      </div>
      <ul class="list small">
        {some.map(([name, words, look]) => (
          <li key={name}>
            <span class="swatch" style={look} aria-hidden="true" /> {count(fit[name])} {words}
          </li>
        ))}
      </ul>
      {memory_needs.map((words) => (
        <p key={words} class="small" data-testid="memory-needs">
          {words}
        </p>
      ))}
    </section>
  );
}

type Fact = readonly [name: string, value: string, limits?: string | undefined];

/** Those that are there. */
export function Facts({ rows }: { rows: readonly (Fact | false | null)[] }) {
  return (
    <dl class="quote-facts">
      {rows.flatMap((row) => (row ? [row] : [])).map(([name, value, limits]) => (
        <>
          <dt>{name}</dt>
          <dd data-testid={name.replace(" ", "-")}>
            {value} {limits && <span class="muted">{limits}</span>}
          </dd>
        </>
      ))}
    </dl>
  );
}

function Best({ quote: { best, devices } }: { quote: Quote }) {
  const first = best[0];
  if (!first) return null;
  const row = (name: string, { value, low, high }: Prediction["peak_bytes"], format: typeof bytes): Fact =>
    [name, format(value), `(${interval(low, high, format)})`];
  const speed = first.speed;
  return (
    <section>
      <h3>Predicted best</h3>
      <p>
        <code data-testid="predicted-best">{first.plan_key}</code>
      </p>
      <Facts
        rows={[
          speed && row("speed", speed.tokens_per_s, (total) => objective(total! / devices, "tokens/s/device", 3)),
          speed && row("step", speed.step_s, stepTime),
          speed && ["MFU", share(speed.mfu)],
          ["fits", probability(first.p_fits)],
          row("peak memory", first.peak_bytes, bytes),
        ]}
      />
      {!speed && <p class="muted small">Speeds cannot be predicted: facts about the cluster are missing.</p>}
    </section>
  );
}

/** The median, and between which ends 8 of 10 campaigns lie; without predictions the ends alone. */
function ends({ low, p50, high }: Range, format: typeof deviceTime): string {
  const all = span(low, high, format);
  return p50 === null ? all : `${format(p50)} (${all})`;
}

function Cost({ quote: { cost, limits } }: { quote: Quote }) {
  return (
    <section>
      <h3>Cost</h3>
      <Facts
        rows={[
          ["first runs", count(cost.first_runs), `${span(cost.trial_s.low, cost.trial_s.high)} each`],
          ["second runs", span(cost.second_runs[0], cost.second_runs[2], count), "of the fastest"],
          ["device time", ends(cost.device_hours, deviceTime)],
          ["time", ends(cost.wall_s, duration)],
        ]}
      />
      {[...cost.ends_before, ...limits.words].map((words) => (
        <p key={words} class="small">
          {words}
        </p>
      ))}
    </section>
  );
}

function Missing({ quote: { missing } }: { quote: Quote }) {
  if (missing.length === 0) return null;
  return (
    <section>
      <h3>Not known</h3>
      <ul class="list small">
        {missing.map(({ path, message }) => (
          <li key={path}>
            <code>{path}</code> <Prose text={message} />
          </li>
        ))}
      </ul>
    </section>
  );
}
