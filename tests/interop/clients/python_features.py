"""PyPI codex-python-sdk on our app server: it puts `--enable` on every command line. Ends with an assertion that says what went wrong."""
import asyncio
import os

from codex_python_sdk import AsyncCodexAgenticClient

work = os.environ["WORK"]


def expect(what, is_true, seen=""):
    assert is_true, f"{what}: {seen!r}"


async def main():
    client = AsyncCodexAgenticClient(
        codex_command=os.environ["OUTPOST"],
        process_cwd=work,
        env=dict(os.environ),
        default_thread_params={"cwd": work},
        enabled_features=["web_search_request"],
        disabled_features=["apps"],
        server_config_overrides={"model_reasoning_effort": "low"},
    )
    async with client:
        answer = await client.responses_create(prompt="say where you are", include_events=True)
        expect("its answer", answer.text == "I am there.", answer.text)
        kinds = [event.type for event in answer.events]
        expect("its events", "item/completed" in kinds and kinds[-1] == "turn/completed", kinds)
        thread = answer.thread_id
        deltas = [delta async for delta in client.responses_stream_text(prompt="stream", thread_id=thread)]
        expect("deltas", len(deltas) >= 2 and "".join(deltas) == "one two three", deltas)

        seen = await client.thread_read(thread, include_turns=True)
        expect("a thread is read", len(seen["turns"]) == 2, seen)
        await client.thread_name_set(thread, "a name")
        listed = await client.thread_list()
        expect("a list of threads", [row["name"] for row in listed if row["id"] == thread] == ["a name"], listed)
        forked = await client.thread_fork(thread)
        expect("a fork", forked["thread"]["forkedFromId"] == thread, forked)
        await client.thread_archive(thread)
        await client.thread_unarchive(thread)

        ran = await client.command_exec(["sh", "-c", "echo out; echo err >&2; exit 3"], cwd=work, timeout_ms=5000)
        expect("a command", (ran["exitCode"], ran["stdout"], ran["stderr"]) == (3, "out\n", "err\n"), ran)

        config = await client.config_read(cwd=work, include_layers=True)
        expect("the configuration", config["config"]["model_reasoning_effort"] == "low", config)
        await client.config_value_write("model_reasoning_effort", "high")
        expect("models", (await client.model_list(limit=1))["data"][0]["model"] == "scripted-model")
        expect("no account", (await client.account_read())["account"] is None)
        expect("no connectors", await client.app_list() == {"data": [], "nextCursor": None})
        off = await client.skills_config_write(f"{work}/skill/SKILL.md", False)
        expect("a skill is switched off", off == {"effectiveEnabled": False}, off)
        for method in (client.skills_list, client.experimental_feature_list, client.config_requirements_read, client.mcp_server_status_list):
            await method()
        found = await client.fuzzy_file_search("nothing", roots=[work])
        expect("no such file", found == {"files": []}, found)


asyncio.run(main())
