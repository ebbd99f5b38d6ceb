"""A request that is sent again under its Idempotency-Key, and another one under the same key."""

import hashlib
from contextlib import closing

from recap.service.jobs import Jobs
from recap.service.store import Store
from service_calls import API, add_job, png


def test_a_repeated_key_gives_the_same_job(client):
    def send(seed):
        files = {"file": ("a.png", png(seed))}
        return client.post(f"{API}/jobs", files=files, headers={"Idempotency-Key": "k1"})

    first, second = send(1), send(1)
    assert first.json() == second.json()
    # The result of the first image must not be taken for that of another.
    assert (send(2).status_code, len(client.get(f"{API}/jobs").json())) == (422, 1)


def test_a_key_is_of_one_address(client):
    """A calibration names its bundle there, not in the form."""

    def send(address, field):
        files = {field: ("a.png", png(1))}
        return client.post(f"{API}/{address}", files=files, headers={"Idempotency-Key": "k"})

    first, again = (send("bundles/brain/calibrate", "normals") for _ in range(2))
    assert first.json() == again.json()
    assert send("bundles/chest/calibrate", "normals").status_code == 422
    assert send("jobs", "file").status_code == 422


def test_a_key_is_of_one_use_of_the_files(client):
    """What was fitted on as normal must not be taken for what is abnormal."""

    def send(*fields):
        files = [(field, (f"{n}.png", png(n))) for n, field in enumerate(fields)]
        address = f"{API}/bundles/brain/calibrate"
        return client.post(address, files=files, headers={"Idempotency-Key": "k"}).status_code

    assert send("normals", "abnormals") == send("normals[]", "abnormals[]") == 202
    assert send("abnormals", "normals") == 422


def test_a_key_is_of_one_set_of_options(client):
    def send(address, field, **data):
        files = {field: ("a.png", png(1))}
        headers = {"Idempotency-Key": f"k {address}"}
        return client.post(f"{API}/{address}", files=files, data=data, headers=headers).status_code

    assert send("fits", "normals", epochs="1", name="a") == 202
    assert send("fits", "normals", name="a", epochs="1") == 202
    assert send("fits", "normals", epochs="2", name="a") == 422
    assert send("jobs", "file", bundle="chest") == 202
    assert send("jobs", "file") == 422  # of the first bundle


def test_a_short_key_cannot_be_found_by_trying(tmp_path):
    """Clients make keys of patients' numbers; whoever has the database must not read them there."""
    kept = []
    for name in ("one", "other"):
        with closing(Store(tmp_path / name)) as store:
            job = add_job(Jobs(store, 9), key="4711")
            kept += [row["client_key"] for row in store.rows("SELECT client_key FROM jobs")]
        with closing(Store(tmp_path / name)) as store:
            assert Jobs(store, 9).by_key("4711") == job  # also after a restart
    tried = {hashlib.sha256(f"{number:04d}".encode()).hexdigest() for number in range(10_000)}
    assert not tried & set(kept)
    assert len(set(kept)) == 2
    secret = tmp_path / "one" / "secret"
    assert (secret.stat().st_size, secret.stat().st_mode & 0o777) == (32, 0o600)


def test_nor_can_a_key_be_tried_on_what_is_kept_of_its_request(make_client, tmp_path):
    """The files and names of a job are there to try with."""
    kept = []
    for name in ("one", "other"):
        client = make_client(data=tmp_path / name)
        files, headers = {"file": ("a.png", png(1))}, {"Idempotency-Key": "4711"}
        job = client.post(f"{API}/jobs", files=files, headers=headers).json()["id"]
        kept.append(client.app.state.service.jobs.get(job).options["request"])
    assert len({*kept, ""}) == 3
