# pip: vllm-router==0.1.17 openai==2.54.0
import socket
import subprocess
import sys
import time
import urllib.request

import openai

from frame import MODEL, TALE, URL, check

with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
router = subprocess.Popen([sys.executable, "-m", "vllm_router.launch_router", "--worker-urls", URL, "--host", "127.0.0.1", "--port", str(port)],
                          stdout=sys.stderr, stderr=sys.stderr)
for _ in range(120):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).read()
        break
    except OSError:
        time.sleep(0.5)
client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", timeout=60)
more = {"model": MODEL, "max_tokens": 20, "temperature": 0}


@check
def models():
    found = [m.id for m in client.models.list()]
    assert found == [MODEL], found
    return found


@check
def completion_and_stream():
    whole = client.completions.create(prompt=TALE, **more).choices[0].text
    streamed = "".join(c.choices[0].text for c in client.completions.create(prompt=TALE, stream=True, **more))
    assert whole and whole == streamed, (whole, streamed)
    return whole


@check
def chat_and_stream():
    messages = [{"role": "user", "content": TALE}]
    whole = client.chat.completions.create(messages=messages, **more).choices[0].message.content
    streamed = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(messages=messages, stream=True, **more))
    assert whole and whole == streamed, (whole, streamed)
    return whole


router.terminate()
router.wait(30)
