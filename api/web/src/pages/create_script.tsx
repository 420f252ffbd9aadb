/** A launch script, pasted or dropped with the files that it reads; what is read of it is a spec with open questions. */
import { useAct } from "../api/act";
import { post } from "../api/client";
import { useResource } from "../api/resource";
import type { ImportedSpec, PresetsView } from "../api/types";
import { Button, Field, Prose } from "../ui/basics";
import { ErrorState } from "../ui/states";
import { plain, Select, Text } from "./create_form";
import { answered, answerOf, withAnswer } from "./spec_text";

export interface Script {
  text: string;
  name: string;
  files: Readonly<Record<string, string>>;
  cluster: string;
  read: ImportedSpec | null;
}

export const FIRST_SCRIPT: Script = { text: "", name: "launch", files: {}, cluster: "", read: null };

interface ScriptProps {
  script: Script;
  onScript: (script: Script) => void;
  spec: string;
  onSpec: (spec: string) => void;
}

export function LaunchScript({ script, onScript, spec, onSpec }: ScriptProps) {
  const { busy, problem, run } = useAct();
  const clusters = useResource<PresetsView>("presets").data?.clusters ?? [];
  const { text, name, files, cluster, read } = script;
  // The first one is the script where there is none yet.
  const take = async (list: FileList) => {
    const taken = await Promise.all([...list].map(async (file) => [file.name, await file.text()] as const));
    const first = text ? undefined : taken.shift();
    onScript({ ...script, ...(first && { name: first[0], text: first[1] }), files: { ...files, ...Object.fromEntries(taken) } });
  };
  const ask = () =>
    run(async () => {
      const made = await post<ImportedSpec>("imports", { body: { script: text, name, files, cluster } });
      onScript({ ...script, read: made });
      onSpec(made.spec);
    });
  return (
    <div
      class="form"
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void take(event.dataTransfer!.files);
      }}
    >
      <Field label="Launch script, command line or configuration">
        <textarea
          rows={read ? 6 : 14}
          wrap="off"
          spellcheck={false}
          placeholder={"#!/bin/bash\n#SBATCH --nodes=4\nsrun torchrun … pretrain_gpt.py …"}
          value={text}
          onInput={(event) => onScript({ ...script, text: event.currentTarget.value })}
        />
      </Field>
      <Field label="Files" hint={Object.keys(files).join(", ") || "Drop or choose the script, then what it reads: ds_config.json, train.py. It is read, never run."}>
        <input type="file" multiple onChange={(event) => void take(event.currentTarget.files!)} />
      </Field>
      <Select label="Cluster" value={cluster} options={[["", "not chosen"], ...plain(clusters.map((one) => one.name))]} onValue={(cluster) => onScript({ ...script, cluster })} />
      <div class="row">
        <Button kind={spec ? "plain" : "primary"} busy={busy} disabled={!text.trim()} onClick={() => void ask()}>
          Read the script
        </Button>
        {read && <span class="muted">{`Trains with: ${read.program}.`}</span>}
      </div>
      {problem && <ErrorState problem={problem} />}
      {read && <Questions read={read} spec={spec} onSpec={onSpec} />}
    </div>
  );
}

/** Each answer stands in the spec, at its path. */
function Questions({ read, spec, onSpec }: { read: ImportedSpec; spec: string; onSpec: (spec: string) => void }) {
  const missing = read.missing.filter((path) => !read.questions.some((one) => one.path === path));
  const asked = [...read.questions, ...missing.map((path) => ({ path, text: "The script does not say it.", guessed: false }))];
  return (
    <div class="form" data-testid="questions">
      {asked.map(({ path, text, guessed }) => {
        const value = path ? answerOf(spec, path) : null;
        if (value === null) return <p key={text}><Prose text={text} /></p>;
        return (
          <Text key={path + text} label={path} hint={text + (guessed ? " (guessed)" : "")} value={value} onValue={(typed) => onSpec(withAnswer(spec, path, typed))} />
        );
      })}
      {answered(spec) !== spec && (
        <Button kind="primary" onClick={() => onSpec(answered(spec))}>
          All of this is answered
        </Button>
      )}
      {read.notes.length > 0 && (
        <details class="small">
          <summary>Notes</summary>
          {read.notes.map((note) => <p key={note}><Prose text={note} /></p>)}
        </details>
      )}
    </div>
  );
}
