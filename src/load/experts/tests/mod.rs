//! The core judged in `simulate`, on routings with skew and locality (`routings`), beside one who knows
//! the future (`oracle`), one who knows the routers (`informed`), and the usual rules. Tried and
//! dropped: least recently and least frequently used, which wait 1.26 and 1.06 times as long there;
//! quotas for each layer are what expectation comes to by itself.

mod informed;
mod oracle;
mod residency;
mod routings;
mod simulate;
#[cfg(unix)]
mod store;
