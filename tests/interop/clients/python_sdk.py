"""The official Python SDK on our app server: what its users do first. Ends with an assertion that says what went wrong."""
import asyncio
import os
import threading
import time

from openai_codex import AsyncCodex, Codex, CodexConfig

work = os.environ["WORK"]
config = CodexConfig(codex_bin=os.environ["OUTPOST"], cwd=work, env=dict(os.environ))


def expect(what, is_true, seen=""):
    assert is_true, f"{what}: {seen!r}"


with Codex(config) as codex:
    thread = codex.thread_start(cwd=work)
    result = thread.run("say where you are")
    expect("a turn completes", result.status.value == "completed", result.status)
    expect("its answer", result.final_response == "I am there.", result.final_response)
    kinds = [item.root.type for item in result.items]
    expect("its items", kinds == ["userMessage", "commandExecution", "agentMessage"], kinds)
    command = result.items[1].root
    expect("its command", command.exit_code == 0 and "ran-once" in command.aggregated_output, command)
    expect("its usage", result.usage.total.total_tokens == 4, result.usage)

    methods = [event.method for event in thread.turn("stream").stream()]
    expect("deltas", methods.count("item/agentMessage/delta") >= 2, methods)
    expect("the end of a stream", methods[-1] == "turn/completed", methods)

    turn = thread.turn("this one never ends")
    threading.Timer(0.5, turn.interrupt).start()
    interrupted = turn.run()
    expect("an interrupted turn", interrupted.status.value == "interrupted", interrupted.status)

    turn = thread.turn("wait for a file")
    time.sleep(0.3)
    turn.steer("and this as well")
    open(os.path.join(work, "go"), "w").close()
    expect("a steered turn", turn.run().final_response == "steered", "")

    try:
        thread.run("this one fails")
        failed = None
    except Exception as error:
        failed = str(error)
    expect("a turn that fails raises", failed is not None and "no such model" in failed, failed)

    thread.set_name("the first one")
    read = thread.read(include_turns=True).thread
    expect("a thread is read", (read.id, read.name, len(read.turns)) == (thread.id, "the first one", 5), read)
    fork = codex.thread_fork(thread.id)
    expect("a fork", fork.id != thread.id and fork.run("go on").final_response == "forked")
    listed = lambda: [entry.id for entry in codex.thread_list().data]
    expect("a list", {thread.id, fork.id} <= set(listed()), listed())
    codex.thread_archive(fork.id)
    expect("an archived thread is not listed", fork.id not in listed())
    codex.thread_unarchive(fork.id)
    expect("and back", fork.id in listed())
    expect("models", codex.models().data is not None)
    expect("no login is needed", not codex.account().requires_openai_auth)

with Codex(config) as codex:
    resumed = codex.thread_resume(thread.id)
    expect("a thread after a restart", resumed.id == thread.id and resumed.run("again").final_response == "again")


async def asynchronously():
    async with AsyncCodex(config) as codex:
        thread = await codex.thread_start(cwd=work)
        result = await thread.run("the last one")
        expect("the asynchronous client", result.final_response == "asynchronous", result)


asyncio.run(asynchronously())
