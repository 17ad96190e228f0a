# pip: sglang-router==0.3.2
import json
import socket
import subprocess
import sys
import time
import urllib.request

from frame import MODEL, URL, check


@check
def a_chat_through_the_router():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    router = subprocess.Popen([sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", URL, "--host", "127.0.0.1", "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}).encode()
    try:
        for _ in range(60):
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return json.loads(answer.read())["choices"][0]["message"]["content"]
            except OSError:
                time.sleep(0.5)
        raise AssertionError("the router answered no chat in 30 s")
    finally:
        router.terminate()
        print(router.communicate(timeout=20)[0][-2000:], file=sys.stderr)
