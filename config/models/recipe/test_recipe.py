#!/usr/bin/env python3
"""Tests of the recipe: python3 -m unittest test_recipe. RODIMUS_URL: a server of a <role> model, to compare frames with; TOKENIZER: its tokenizer.json."""
import collections
import importlib.util
import json
import os
import random
import sys
import unittest
import unittest.mock
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import skills  # noqa: E402

HELDOUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tales", "heldout.txt")
with open(HELDOUT, encoding="utf-8") as heldout:
    BANK = skills.Bank(heldout.read().split("\n<|endoftext|>\n"))
POOLS = {"train": skills.Pool("train", skills.words_of(BANK.tales)), "heldout": skills.Pool("heldout")}


def samples(n, split="heldout"):
    for skill, maker in {**skills.MAKERS, "many": skills.recall_many, "real": skills.fim_real, **({"words": skills.words, "choose": skills.choose} if split == "train" else {})}.items():
        rng = random.Random("test " + skill)
        for _ in range(n):
            yield maker(rng, POOLS[split], BANK)


class Recipe(unittest.TestCase):
    def test_the_right_answer_passes_and_wrong_ones_fail(self):
        for split in POOLS:
            for s in samples(150, split):
                right = s["answer"]
                self.assertTrue(skills.check(s, right), s)
                for wrong in ("", right[:-1], right + "x", right[1:], right.replace("a", "e", 1) if "a" in right else "-" + right):
                    self.assertFalse(skills.check(s, wrong), (s, wrong))

    def test_json_may_have_other_white_space_only(self):
        s = {"skill": "extraction", "answer": '{"a": 1, "b": "x"}'}
        self.assertTrue(skills.check(s, '{"b":"x","a":1}'))
        for wrong in ('{"a": 1.5, "b": "x"}', '{"a": "1", "b": "x"}', '{"a": 1}', '{"a": 1, "b": "x", "c": 2}', "{"):
            self.assertFalse(skills.check(s, wrong))

    def test_the_pools_share_nothing(self):
        for part in ("made", "real", "kinds", "items", "looks", "things", "places", "owned", "spots", "tool_words"):
            one, two = (set(getattr(POOLS[s], part)) for s in ("train", "heldout"))
            self.assertFalse(one & two, part)
            self.assertTrue(one and two, part)
        held = POOLS["heldout"]
        self.assertFalse(set(POOLS["train"].words) & {*held.kinds, *held.items, *held.looks, *held.things, *held.owned, *held.spots})
        rng = random.Random(8)
        self.assertFalse([n for n in (POOLS["train"].name(rng) for _ in range(3000)) if skills.is_held(n)])
        self.assertFalse({t.split()[1] + t.split()[0] for t in POOLS["train"].tool_words} & {t.split()[1] + t.split()[0] for t in POOLS["heldout"].tool_words})

    def test_arguments_come_from_the_request_and_the_tool_is_listed(self):
        rng = random.Random(5)
        for i in range(400):
            s = skills.choose(rng, POOLS["train"], BANK) if i % 4 == 3 else skills.tools(rng, POOLS[("heldout", "train")[i % 2]], BANK)
            lines = s["messages"][0]["content"].split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
            if s.get("form") == "bare":
                lines = [json.dumps({"function": {"name": x.split(": ")[0], "parameters": {"properties": {}, "required": []}}}) for x in lines]
            definitions = [json.loads(x) for x in lines]
            self.assertTrue(1 <= len(definitions) <= 12)
            said = s["messages"] + [{"role": "assistant", "content": s["answer"]}]
            for wish, answer in zip(said, said[1:]):
                if wish["role"] != "user" or answer["content"] == skills.NO_TOOL:
                    continue
                call = json.loads(answer["content"].split("\n")[1])
                tool, = [d["function"] for d in definitions if d["function"]["name"] == call["name"]]
                for key in tool["parameters"]["required"]:
                    self.assertIn(key, call["arguments"])
                for key, value in call["arguments"].items():
                    self.assertIn(str(value), wish["content"])
                    self.assertEqual(tool["parameters"]["properties"][key]["type"], "integer" if isinstance(value, int) else "string")

    def test_arguments_of_a_chain_come_from_what_was_read(self):
        rng, forms = random.Random(9), collections.Counter()
        for i in range(600):
            s = skills.MAKERS[skills.TALKS[i % 3]](rng, POOLS[("heldout", "train")[i // 3 % 2]], BANK)
            tools, read, calls = {t["function"]["name"]: t["function"]["parameters"] for t in skills.tools_of(s["messages"][0]["content"])["tools"]}, "", 0
            for m in s["messages"][1:] + [{"role": "assistant", "content": s["answer"]}]:
                if not m["content"].startswith("<tool_call>"):
                    read += m["content"].replace("\\", "") + "\n"
                    continue
                calls += 1
                call = json.loads(m["content"].split("\n")[1])
                self.assertLessEqual(set(tools[call["name"]]["required"]), set(call["arguments"]))
                for key, value in call["arguments"].items():
                    self.assertIn(key, tools[call["name"]]["properties"])
                    self.assertTrue(value == "." or str(value) in read, (value, read))
            forms[s["skill"], s["form"]] += 1
            self.assertGreaterEqual(calls, {"second": 2, "chain": 3, "agent": 1}[s["skill"]], s)
        self.assertEqual(len(forms), 3 + 2 + 5, forms)

    def test_what_an_agent_answers_stands_in_its_file(self):
        rng = random.Random(10)
        for _ in range(300):
            s = skills.agent(rng, POOLS["heldout"], BANK)
            last = [m["content"] for m in s["messages"] if m["role"] == "tool"][-2 if s["form"] == "write" else -1]
            if s["form"] == "missing":
                self.assertNotIn(s["answer"].split()[-1][:-1] + ".", last)
            else:
                self.assertIn(s["answer"], last)

    def test_a_conversation_is_right_if_each_answer_is(self):
        import measure
        rng = random.Random(11)
        for skill in skills.TALKS:
            s = skills.MAKERS[skill](rng, POOLS["heldout"], BANK)
            answers = [m["content"] for m in s["messages"] + [{"role": "assistant", "content": s["answer"]}] if m["role"] == "assistant"]
            for wrong_at in (None, *range(len(answers))):
                asked = []

                def post(_, path, body):
                    self.assertEqual(path, "/v1/chat/completions")
                    self.assertEqual([m["role"] for m in body["messages"]][-1] in ("user", "tool"), True)
                    answer = answers[len(asked)] if len(asked) != wrong_at else "No."
                    asked.append(body)
                    if not answer.startswith("<tool_call>"):
                        return {"choices": [{"message": {"role": "assistant", "content": answer}}]}
                    call = json.loads(answer.split("\n")[1])
                    call["arguments"] = json.dumps(call["arguments"])
                    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": call}]}}]}
                with unittest.mock.patch.object(measure, "post", post):
                    got, expected, right = measure.talk("", s)
                self.assertEqual((got, expected), (None, None) if wrong_at is None else ("No.", answers[wrong_at]))
                self.assertEqual((len(asked), len(right)), (len(answers),) * 2 if wrong_at is None else (wrong_at + 1, wrong_at))

    def test_edits_change_what_was_asked_and_nothing_else(self):
        rng = random.Random(6)
        for _ in range(200):
            s = skills.edit(rng, POOLS["heldout"], BANK)
            old = s["messages"][0]["content"].split("\n\n", 1)[1]
            self.assertNotEqual(old, s["answer"])
            self.assertLess(abs(len(old) - len(s["answer"])), 400)

    def test_extracted_values_stand_in_the_tale(self):
        rng = random.Random(7)
        for _ in range(200):
            s = skills.extraction(rng, POOLS["heldout"], BANK)
            for value in json.loads(s["answer"]).values():
                self.assertIn(skills.count(value) if isinstance(value, int) else value, s["messages"][0]["content"])

    def test_the_same_seed_makes_the_same_cases(self):
        self.assertEqual(list(samples(5)), list(samples(5)))

    def test_a_result_becomes_the_table_of_a_page(self):
        import tempfile

        import table
        one = {"cases": 4, "right": 3}
        result = {"skills": {skill: one for skill, _ in table.ROWS}, "tales": {"tales": 12, "characters": 98312, "nats_a_character": 0.84}}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("r.json", json.dumps(result)), ("P.md", "a\n<!-- measured -->\nold\n<!-- end of measured -->\nb\n")):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                    f.write(text)
            table.main(os.path.join(folder, "r.json"), os.path.join(folder, "P.md"))
            with open(os.path.join(folder, "P.md"), encoding="utf-8") as f:
                said = f.read()
        self.assertIn("| edit: the whole tale | 4 | 3 (75.0%) |\n", said)
        self.assertEqual((said.count("\n"), said[:22], said[-3:]), (2 + len(table.ROWS) + 5, "a\n<!-- measured -->\n| ", "\nb\n"))

    @unittest.skipUnless(importlib.util.find_spec("torch") and importlib.util.find_spec("safetensors"), "no PyTorch")
    def test_a_merged_tensor_has_its_part_of_the_later_model(self):
        import tempfile

        import merge
        import torch
        from safetensors.torch import load_file, save_file
        names, parts = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"), {"a": 0.25, "b": 1.0, "c": 0.0}
        with tempfile.TemporaryDirectory() as folder:
            earlier, later, out = (os.path.join(folder, name) for name in ("earlier", "later", "out"))
            for model, value in ((earlier, 8.0), (later, 16.0)):
                os.mkdir(model)
                save_file({name: torch.full((2, 3), value, dtype=torch.bfloat16) for name in parts}, os.path.join(model, "model.safetensors"))
            for name, value in (*((n, {"of": n}) for n in names), ("training.json", {"step": 5})):
                with open(os.path.join(later, name), "w", encoding="utf-8") as f:
                    json.dump(value, f)
            with open(os.path.join(folder, "parts.json"), "w", encoding="utf-8") as f:
                json.dump({"merge": {"parts": parts}}, f)
            with unittest.mock.patch.object(sys, "argv", ["merge.py", earlier, later, out, "--parts", f.name]):
                merge.main()
            merged = load_file(os.path.join(out, "model.safetensors"))
            self.assertEqual({name: w.unique().tolist() for name, w in merged.items()}, {"a": [10.0], "b": [16.0], "c": [8.0]})
            with open(os.path.join(out, "training.json"), encoding="utf-8") as f:
                self.assertEqual(json.load(f), {"step": 5, "merge": {"parts": parts}})

    @unittest.skipUnless(os.environ.get("RODIMUS_URL"), "no server")
    def test_frames_are_those_of_the_server(self):
        for s in samples(20):
            if "messages" in s and not any(m["content"].startswith("\n<tool_response>") for m in s["messages"]):  # of other clients
                body = json.dumps({"messages": skills.sent(s["messages"])}).encode()
                request = urllib.request.Request(os.environ["RODIMUS_URL"] + "/apply-template", body, {"Content-Type": "application/json"})
                with urllib.request.urlopen(request) as answer:
                    self.assertEqual(json.load(answer)["prompt"], skills.render(s["messages"]))

    @unittest.skipUnless(os.environ.get("RODIMUS_URL"), "no server")
    def test_conversations_with_tools_are_rendered_as_they_were_learnt(self):
        for s in samples(20):
            if s["skill"] not in skills.TALKS or '"type":"function"' in s["messages"][0]["content"]:  # compact lists of other clients
                continue
            head, sent = skills.tools_of(s["messages"][0]["content"]), []
            for m in skills.sent(s["messages"][1:]):
                if m["content"].startswith("<tool_call>"):
                    call = json.loads(m["content"].split("\n")[1])
                    m = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {**call, "arguments": json.dumps(call["arguments"], ensure_ascii=False)}}]}
                sent.append({**m, "tool_call_id": "a"} if m["role"] == "tool" else m)
            body = json.dumps({"messages": head["system"] + sent, "tools": head["tools"]}).encode()
            request = urllib.request.Request(os.environ["RODIMUS_URL"] + "/apply-template", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                self.assertEqual(json.load(answer)["prompt"], skills.render(s["messages"]))

    @unittest.skipUnless(os.environ.get("TOKENIZER"), "no tokenizer")
    def test_ids_are_those_of_the_whole_text_and_targets_end_each_answer(self):
        import train
        e = train.Encoder(os.environ["TOKENIZER"])
        for s in samples(30):
            ids, targets, weights = e.sample(s)
            if "messages" in s:
                self.assertEqual(ids, e.ids(skills.render(s["messages"]) + s["answer"]))
                answers = [m["content"] for m in s["messages"] if m["role"] == "assistant"] + [s["answer"]]
            else:
                answers = [s["answer"]]
            learnt = [t for t, w in zip(targets, weights) if w]
            self.assertEqual(learnt, [t for a in answers for t in e.ids(a) + [e.end]])
            for i in range(len(ids) - 1):
                self.assertTrue(targets[i] in (ids[i + 1], e.end))

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "no numpy")
    def test_confirmed_forms_are_taken_once_and_a_better_one_later(self):
        import types

        import train
        said, taken, model = [], {}, types.SimpleNamespace()
        forms = types.SimpleNamespace(scan_chunks="chunks", scan_better="better", attention_varlen="varlen")
        confirmed = {"scan": "scan_chunks"}
        for change in ({}, {}, {"scan": "scan_better", "attention": "attention_varlen"}, {}):
            confirmed.update(change)
            train.take(model, confirmed, taken, forms, None, said.append, 60)
        self.assertEqual((model.scan, model.attention, len(said)), ("better", "varlen", 3))
        taken["scan"] = ""  # it failed in training
        train.take(model, {"scan": "scan_chunks"}, taken, forms, None, said.append, 60)
        self.assertEqual((model.scan, len(said)), ("better", 3))


if __name__ == "__main__":
    unittest.main()
