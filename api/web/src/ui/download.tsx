/** A file of the service. A plain link could not send the token, so the page fetches it. */
import { useAct } from "../api/act";
import { request } from "../api/client";
import { Button, type ButtonProps } from "./basics";
import { Trouble } from "./dialog";
import { save } from "./json";

type DownloadProps = Omit<ButtonProps, "onClick" | "name"> & {
  /** Below v1/. */
  path: string;
  name: string;
};

export function Download({ path, name, children, ...rest }: DownloadProps) {
  const act = useAct();
  const fetchIt = async () => {
    const blob = await (await request(path)).blob();
    save(blob, name, blob.type);
  };
  return (
    <>
      <Button {...rest} busy={act.busy} title={`GET /v1/${path}`} onClick={() => void act.run(fetchIt)}>{children}</Button>
      <Trouble act={act} />
    </>
  );
}
