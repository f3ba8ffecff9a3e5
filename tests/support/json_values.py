"""Any small JSON value, for documents in which one value is replaced."""

from hypothesis import strategies as st

JSON_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
)
