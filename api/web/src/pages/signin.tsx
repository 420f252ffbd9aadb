/** Asks for a token, and says where tokens come from. */
import { useState } from "preact/hooks";
import { signIn } from "../api/session";
import { Button, Card, Field } from "../ui/basics";
import { CopyButton } from "../ui/copy";

const COMMAND = "meshtune open";

export function SignIn({ refused }: { refused: string }) {
  const [secret, setSecret] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    if (secret.trim()) void signIn(secret);
  };
  return (
    <Card class="sign-in" testid="signin">
      <h1>Sign in</h1>
      <form class="form" onSubmit={submit}>
        <Field label="Token" mistake={refused || undefined}>
          <input
            type="password"
            name="token"
            autocomplete="off"
            spellcheck={false}
            placeholder="mt_..."
            value={secret}
            autofocus
            aria-invalid={refused !== ""}
            onInput={(event) => setSecret(event.currentTarget.value)}
          />
        </Field>
        <Button type="submit" kind="primary" disabled={!secret.trim()}>
          Sign in
        </Button>
      </form>
      <p class="muted">Where the service runs, this makes a link that signs in without one:</p>
      <div class="row">
        <pre class="code-block grow">{COMMAND}</pre>
        <CopyButton text={COMMAND} />
      </div>
      <p class="muted small">
        Elsewhere, a token of <code>meshtune token create</code>. It stays in this browser until you sign out.
      </p>
    </Card>
  );
}
