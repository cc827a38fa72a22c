"""@host_tools: programs that single tests need and a build does not."""

_MISSING = "hipcc was not found: //bazel:hip_test is skipped. Install it (Debian: apt-get install hipcc), " + \
           "or name it with RTP_LLM_HIPCC (./dev test does both)"

def _host_tools_repository(rctx):
    asked = rctx.os.environ.get("RTP_LLM_HIPCC")
    found = asked or rctx.which("hipcc") or "/opt/rocm/bin/hipcc"
    has_hipcc = rctx.path(str(found)).exists
    if not has_hipcc:
        # buildifier: disable=print
        print(_MISSING)
    rctx.file("BUILD.bazel", "")
    rctx.file("defs.bzl", "HAS_HIPCC = %r\n" % has_hipcc)

host_tools_repository = repository_rule(
    implementation = _host_tools_repository,
    # An installed hipcc is seen by the next Bazel server, or at once where RTP_LLM_HIPCC names it.
    environ = ["PATH", "RTP_LLM_HIPCC"],
    local = True,
)
