//! The registry of strategies: their order, names, and what each does in one line. In: a name. Out:
//! a strategy. Options and tables read it; each strategy's planning has its own file.

use crate::error::{Error, Result};

/// A rule by which a plan is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Both graphs stay in memory.
    Resident,
    /// All loads after the prefill.
    Sync,
    /// Each block's load after its run in the last chunk.
    Async,
    /// The paper's k*: from the first chunk, the last block first (CoordGen, Eq. 2).
    Greedy,
    /// As late as still hides every load.
    JustInTime,
    /// G2 only.
    Single,
    /// The quickest of the others, and of equally quick ones that with the least memory.
    Auto,
}

impl Strategy {
    /// All of them, in the order of options and tables.
    pub const ALL: [Self; 7] = [
        Self::Resident,
        Self::Sync,
        Self::Async,
        Self::Greedy,
        Self::JustInTime,
        Self::Single,
        Self::Auto,
    ];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Sync => "sync",
            Self::Async => "async",
            Self::Greedy => "greedy",
            Self::JustInTime => "just_in_time",
            Self::Single => "single",
            Self::Auto => "auto",
        }
    }

    /// What it does, in one line, for help texts and tables.
    pub fn about(self) -> &'static str {
        match self {
            Self::Resident => "keeps both graphs of every block in memory",
            Self::Sync => "loads everything after the prefill",
            Self::Async => "loads each block after its run in the last chunk",
            Self::Greedy => "CoordGen's k*: loads from the first chunk on, the last block first",
            Self::JustInTime => "loads as late as still hides every load",
            Self::Single => "uses the decode graph only",
            Self::Auto => "takes the quickest of the others; among equals, the least memory",
        }
    }

    /// The strategy of that name.
    pub fn named(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.name() == name).ok_or(Error::BadOption {
            what: "strategy",
            got: format!("{name:?}"),
            must: "one of resident, sync, async, greedy, just_in_time, single, auto",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_by_all_names_in_order() {
        let names = Strategy::ALL.map(Strategy::name);
        assert_eq!(names.map(|name| Strategy::named(name).unwrap()), Strategy::ALL);
        let said = Strategy::named("later").unwrap_err().to_string();
        assert_eq!(said, format!("strategy is \"later\", but must be one of {}", names.join(", ")));
    }
}
