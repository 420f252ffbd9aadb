import { expect, test } from "vitest";
import { problemOf, retryAfter } from "./problem";

test("a problem document keeps its mistakes and the time to wait", async () => {
  const body = { type: "/problems/invalid-spec", title: "Bad", status: 422, detail: "2 mistakes", errors: [{ pointer: "/a", detail: "no" }] };
  const problem = await problemOf(new Response(JSON.stringify(body), { status: 422, headers: { "Retry-After": "3" } }));
  expect([problem.title, problem.message, problem.mistakes, problem.retryAfterS, problem.passing]).toEqual(["Bad", "2 mistakes", body.errors, 3, false]);
});

test("an answer that is no problem document is one all the same", async () => {
  const problem = await problemOf(new Response("<h1>Bad Gateway</h1>", { status: 502, statusText: "Bad Gateway" }));
  expect([problem.title, problem.mistakes, problem.passing]).toEqual(["The service does not answer", [], true]);
});

test("a title says what a person can do with it, and the detail stays", async () => {
  const body = { type: "/problems/not-found", title: "There is no such object", detail: "there is no campaign x" };
  const problem = await problemOf(Response.json(body, { status: 404 }));
  expect([problem.title, problem.detail]).toEqual(["This does not exist, or your token may not read it", "there is no campaign x"]);
});

test("a defect of the service does not pass by itself", async () => {
  const statuses = [404, 429, 500, 503];
  const problems = await Promise.all(statuses.map((status) => problemOf(new Response("", { status }))));
  expect(problems.map((problem) => problem.passing)).toEqual([false, true, false, true]);
});

test("only seconds are a time to wait", () => {
  expect(["5", " 12 ", "soon", "", null].map((header) => retryAfter(header))).toEqual([5, 12, null, null, null]);
});
