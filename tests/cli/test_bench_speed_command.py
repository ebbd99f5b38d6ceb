import json

import pytest


@pytest.fixture
def speed(command, tiny):
    def run(*more):
        return command("bench", "speed", "--runs", "2", "--warmup", "1", *tiny, *more)

    return run


def test_rows_on_screen_and_as_json(speed, tmp_path):
    file = tmp_path / "new" / "speed.json"
    result = speed("--shots", "0,2", "--input-px", "70,84", "--threads", "1", "--json", file)
    assert result.code == 0, result.err
    rows = json.loads(file.read_text())
    combinations = [("recap", 0), ("static", 0), ("recap", 2), ("nearest", 2), ("static", 2)]
    assert [(row["input_px"], row["method"], row["shots"]) for row in rows] == [
        (size, *one) for size in (70, 84) for one in combinations
    ]
    assert all(row["ratio_to_encoder"] > 0 and row["latency_ms_mean"] > 0 for row in rows)
    assert {row["threads"] for row in rows} == {1}
    assert len(result.out.splitlines()) == 2 + len(rows) + 2
    assert "Timing: 6/6" in result.err
    assert [path.name for path in file.parent.iterdir()] == ["speed.json"]


def test_settings_reach_the_models(speed, tmp_path):
    def params(*more):
        file = tmp_path / "speed.json"
        result = speed("--methods", "recap", "--shots", "2", "--json", file, *more)
        assert result.code == 0, result.err
        [row] = json.loads(file.read_text())
        return row["params"], row["settings"]["memory"]["coreset"]

    own, coreset = params("--preset", "fast", "--random-weights", "--coreset", "9")
    assert coreset == 9
    static, _ = params("--preset", "fast", "--set", "model.conditioning=static")
    assert params("--preset", "paper")[0] > own > static


def test_published_latencies_on_request(speed):
    assert "APRIL-GAN" not in speed("--shots", "0", "--methods", "recap").out
    shown = speed("--shots", "0", "--methods", "all", "--published")
    assert "APRIL-GAN" in shown.out
    assert "Latency / encoder" in shown.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--methods", "recap,mvfaa"],
            "No method is called 'mvfaa'. Did you mean 'mvfa'?",
        ),
        (["--methods", "nearest", "--shots", "0"], "nothing to time at 0 shots"),
        (["--input-px", "big"], "not a list of numbers"),
        (["--input-px", "8"], "encoder.input_px = 8"),
        (["--device", "abacus"], "Device 'abacus'"),
        (["--encoder", "dinov2-smal"], "dinov2-small"),
    ],
)
def test_wrong_options_are_told_in_one_line(speed, options, message):
    result = speed(*options)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_the_table_is_shown_even_if_the_file_cannot_be_written(speed, tmp_path):
    (tmp_path / "taken").write_text("")
    result = speed("--methods", "recap", "--shots", "0", "--json", tmp_path / "taken" / "rows.json")
    assert result.code == 2
    assert "bare encoder" in result.out
    assert "Cannot write" in result.err


def test_help_tells_what_is_skipped(command):
    result = command("bench", "speed", "--help")
    assert "skipped at 0" in " ".join(result.out.split())
