"""PyPI codex-sdk-python on our `exec` and on our app server. Ends with an assertion that says what went wrong."""
import asyncio
import os

from codex_sdk import Codex, CodexOptions, ThreadOptions
from codex_sdk.app_server import AppServerClient, AppServerOptions, ApprovalDecisions

work, program, env = os.environ["WORK"], os.environ["OUTPOST"], dict(os.environ)


def expect(what, is_true, seen=""):
    assert is_true, f"{what}: {seen!r}"


async def by_exec():
    codex = Codex(CodexOptions(codex_path_override=program, env=env, config_overrides={"analytics.enabled": False}))
    options = ThreadOptions(
        model="scripted-model", sandbox_mode="danger-full-access", working_directory=work, skip_git_repo_check=True,
        model_reasoning_effort="medium", network_access_enabled=True, web_search_mode="cached", approval_policy="never",
        additional_directories=[work], feature_overrides={"whatever": True}, max_threads=4,
    )
    thread = codex.start_thread(options)
    turn = await thread.run("say where you are")
    expect("its answer", turn.final_response == "I am there.", turn)
    expect("its command", turn.commands()[0].exit_code == 0, turn.items)
    again = await codex.resume_thread(thread.id, options).run("once more")
    expect("a resumed thread", again.final_response == "the same thread", again)


async def by_app_server():
    options = AppServerOptions(codex_path_override=program, env=env, experimental_api_enabled=True, request_timeout=20)
    async with AppServerClient(options) as app:
        thread = (await app.thread_start(model="scripted-model", cwd=work))["thread"]["id"]
        session = await app.turn_session(thread, "say it", approvals=ApprovalDecisions(command_execution="accept"))
        methods = [notification.method async for notification in session.notifications()]
        expect("notifications", methods[-1] == "turn/completed", methods)
        expect("a turn", (await session.wait())["status"] == "completed")
        # While the command runs, making the thread smaller waits for its end.
        await app.thread_shell_command(thread, command="sleep 0.3")
        expect("compacting", await app.thread_compact_start(thread) == {})
        expect("a skill is switched off", await app.skills_config_write(path=f"{work}/SKILL.md", enabled=False) == {"effectiveEnabled": False})
        await app.fs_create_directory(path=f"{work}/folder")
        expect("a directory", (await app.fs_get_metadata(path=f"{work}/folder"))["isDirectory"])
        ran = await app.command_exec(command=["echo", "hi"], cwd=work)
        expect("a command", ran["stdout"] == "hi\n", ran)
        expect("hearing no more", (await app.thread_unsubscribe(thread))["status"] == "unsubscribed")


asyncio.run(by_exec())
asyncio.run(by_app_server())
