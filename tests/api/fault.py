"""A device that fails in mid-flight (RODIMUS_TEST_FAULT_STEP, see README.md): every request gets its error, the log says
what happened, the process ends by itself with a status other than 0. test_fault.py runs this on the CPU; as a program it needs
the standard library only: python3 tests/api/fault.py [DEVICE]."""
import sys
import threading
import time

from server import SLOWER, Server, read_events

END_S = 30
STREAM = {"speculative": "none", "prompt": "Once", "max_tokens": 100000, "ignore_eos": True, "temperature": 0, "stream": True}


def serve(device, step, name):  # the fault comes before a client counts as idle, on whatever machine
    return Server("--device", device, "--slots", 3, "--idle-timeout-ms", 900000, name=f"fault-{device}-{name}".replace(":", "-"),
                  env={"RODIMUS_TEST_FAULT_STEP": str(step)})


def expect_end(s):
    began = time.monotonic()
    code = s.wait()
    assert code == 1, f"exit status {code}: {s.log()[-2000:]}"
    assert time.monotonic() - began < END_S * SLOWER
    log = s.log()
    assert "RODIMUS_TEST_FAULT_STEP is set" in log and "device fault: " in log and "Device failed; shutting down" in log, log


def running_streams_and_waiting_requests_get_an_error(device):
    s = serve(device, 300, "streams")
    streams = [s.open("POST", "/v1/completions", STREAM) for _ in range(3)]
    answers = []
    waiting = [threading.Thread(target=lambda: answers.append(s.post("/v1/completions", {"prompt": "a", "max_tokens": 2})))
               for _ in range(2)]
    for t in waiting:
        t.start()
    for connection, response in streams:
        assert response.status == 200
        events = [e for e in read_events(response) if not e.comment]
        connection.close()
        assert len(events) > 2 and events[-1].data == "[DONE]", events[-3:]
        assert events[-2].data["error"]["code"] == "device_fault", events[-2].data
        assert all("choices" in e.data for e in events[:-2])
    for t in waiting:
        t.join(20)
    assert len(answers) == 2
    for a in answers:
        assert a.status == 503 and a.error["code"] == "device_fault", a
    expect_end(s)


def a_request_before_its_first_token_gets_503(device):
    s = serve(device, 1, "first")
    answer = s.post("/v1/completions", {"prompt": "Once", "max_tokens": 5})
    assert answer.status == 503 and answer.error["code"] == "device_fault", answer
    expect_end(s)


def a_client_that_does_not_read_keeps_nobody(device):
    """Its stream is open and full when the device fails; the process ends all the same."""
    s = serve(device, 3000 // SLOWER, "unread")
    connection, response = s.open("POST", "/v1/completions", STREAM)
    assert response.status == 200
    s.wait_log("device fault: ", timeout=600)  # thousands of steps, on whatever machine
    expect_end(s)
    connection.close()


ALL = [running_streams_and_waiting_requests_get_an_error, a_request_before_its_first_token_gets_503,
       a_client_that_does_not_read_keeps_nobody]

if __name__ == "__main__":
    for part in ALL:
        part(sys.argv[1] if len(sys.argv) > 1 else "cpu")
        print(f"{part.__name__}: passed")
