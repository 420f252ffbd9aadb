/** What a campaign of this spec would meet and cost. Everything here is predicted, and says so. */
import { Prose } from "../ui/basics";
import type { Prediction, Quote, Range } from "../api/types";
import { amount, bytes, count, duration, interval, probability, share, span, stepTime, tokensPerS } from "../format";

export function Quote({ quote }: { quote: Quote }) {
  return (
    <div class="quote">
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
          <table class="compact">
            <tbody>
              {rejected.map(([rule, rejects]) => (
                <tr key={rule}>
                  <td>
                    <code>{rule}</code>
                  </td>
                  <td class="num">{count(rejects)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          <p class="muted">A combination may break several rules.</p>
        </details>
      )}
    </section>
  );
}

const CLASSES = [
  ["sure", "surely (90 % or more)"],
  ["likely", "likely (50 to 90 %)"],
  ["unlikely", "unlikely (10 to 50 %)"],
  ["hopeless", "hardly (below 10 %)"],
] as const;

function Fit({ quote: { fit, space, memory_needs } }: { quote: Quote }) {
  if (fit === null) return null;
  return (
    <section>
      <h3>Memory</h3>
      <p>
        About <strong>{count(fit.expected)}</strong> of {count(space.legal)} are expected to fit.
      </p>
      <div class="fit-bar" role="img" aria-label={CLASSES.map(([name, words]) => `${fit[name]} fit ${words}`).join(", ")}>
        {CLASSES.filter(([name]) => fit[name] > 0).map(([name]) => (
          <div key={name} class={`fit-${name}`} style={{ flexGrow: fit[name] }} />
        ))}
      </div>
      <ul class="fit-legend small">
        {CLASSES.filter(([name]) => fit[name] > 0).map(([name, words]) => (
          <li key={name}>
            <span class={`swatch fit-${name}`} aria-hidden="true" /> {count(fit[name])} {words}
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

function Best({ quote: { best } }: { quote: Quote }) {
  const first = best[0];
  if (!first) return null;
  return (
    <section>
      <h3>Predicted best</h3>
      <p>
        <code data-testid="predicted-best">{first.plan_key}</code>
      </p>
      <dl class="quote-facts">
        {first.speed && <Speed speed={first.speed} />}
        <dt>fits</dt>
        <dd>{probability(first.p_fits)}</dd>
        <dt>peak memory</dt>
        <dd>
          {bytes(first.peak_bytes.value)} <span class="muted">({interval(first.peak_bytes.low, first.peak_bytes.high, bytes)})</span>
        </dd>
      </dl>
      {!first.speed && <p class="muted small">Speeds cannot be predicted: facts about the cluster are missing.</p>}
    </section>
  );
}

function Speed({ speed }: { speed: NonNullable<Prediction["speed"]> }) {
  return (
    <>
      <dt>speed</dt>
      <dd>
        {tokensPerS(speed.tokens_per_s.value)} <span class="muted">({interval(speed.tokens_per_s.low, speed.tokens_per_s.high, tokensPerS)})</span>
      </dd>
      <dt>step</dt>
      <dd>
        {stepTime(speed.step_s.value)} <span class="muted">({interval(speed.step_s.low, speed.step_s.high, stepTime)})</span>
      </dd>
      <dt>MFU</dt>
      <dd>{share(speed.mfu)}</dd>
    </>
  );
}

/** The median, and between which ends 8 of 10 campaigns lie; without predictions the ends alone. */
function ends({ low, p50, high }: Range, format: (value: number) => string): string {
  return p50 === null ? span(low, high, (value) => format(value ?? 0)) : `${format(p50)} (${span(low, high, (value) => format(value ?? 0))})`;
}

function Cost({ quote: { cost, limits } }: { quote: Quote }) {
  return (
    <section>
      <h3>Cost</h3>
      <dl class="quote-facts">
        <dt>trials</dt>
        <dd>
          {count(cost.first_runs)} and {span(cost.second_runs[0], cost.second_runs[2], count)} second runs{" "}
          <span class="muted">of {span(cost.trial_s.low, cost.trial_s.high)} each</span>
        </dd>
        <dt>device-hours</dt>
        <dd data-testid="device-hours">{ends(cost.device_hours, amount)}</dd>
        <dt>time</dt>
        <dd>{ends(cost.wall_s, duration)}</dd>
      </dl>
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
