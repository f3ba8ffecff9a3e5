"""A profile: any file is refused by name, or is the same when it is written, and can be planned."""

from coordgen_rs.errors import OptionError, ProfileError
from coordgen_rs.lab.loads.plans import plan_by_all
from coordgen_rs.loading.profile import Profile
from scratch import holding

IS_JSON = True


def run(data: bytes) -> None:
    """Read a file, and plan a prompt of ten chunks by it."""
    try:
        profile = Profile.read(holding("profile.json", data))
    except ProfileError:
        return
    assert Profile.from_json(profile.to_json()) == profile
    try:
        plans = plan_by_all(profile, min(10 * profile.prefill_rows, 5_000))
    except OptionError:  # the figures are so large that their sums are none
        return
    assert len(plans) > 1
