"""A request that is sent again under its Idempotency-Key, and another one under the same key."""

from service_calls import API, png


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
