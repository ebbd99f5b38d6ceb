import pytest

from recap.errors import SettingsError
from recap.token_file import read_token


def test_a_token_is_the_only_line_of_a_file(tmp_path):
    (tmp_path / "token").write_text(" ey.J0-e_n\n")
    assert read_token(tmp_path / "token") == "ey.J0-e_n"
    with pytest.raises(SettingsError, match=r"at least 16 letters.* has 9 characters in 1 lines"):
        read_token(tmp_path / "token", shortest=16)


@pytest.mark.parametrize("content", [b"", b"\n", b"se cret", b"secret\nsecret", "sécret".encode()])
def test_what_is_no_token_is_refused_without_being_quoted(content, tmp_path):
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(SettingsError, match="token: a token is one line") as told:
        read_token(tmp_path / "token")
    assert "cret" not in str(told.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SettingsError, match="Cannot read the token file"):
        read_token(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="Cannot read the token file"):
        read_token(tmp_path / "bytes")
