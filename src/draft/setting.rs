//! Options behind a name: `diaa:budget=60:update_interval=4`. In: what was written, and the places that
//! its owner has for values. Out: the name; values at their places, within their ranges; and back.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};

/// Where the value of an option goes, and what it may be.
#[derive(Debug)]
pub enum Setting<'a> {
    /// A whole number, within bounds.
    Count(&'a mut usize, RangeInclusive<usize>),
    /// The same, where without the option there is none.
    Bound(&'a mut Option<usize>, RangeInclusive<usize>),
    /// A number between that and 1, both included.
    Share(&'a mut f32, f32),
    /// Yes or no.
    Switch(&'a mut bool),
}

/// The options that something has, by their names.
pub type Settings<'a> = Vec<(&'static str, Setting<'a>)>;

/// The name in front of the options, and the options.
pub fn split(spelling: &str) -> (&str, impl Iterator<Item = &str>) {
    let mut parts = spelling.split(':');
    (parts.next().unwrap_or_default(), parts)
}

/// A name with the options behind it that say what its settings are.
pub fn spelled(name: &str, settings: &Settings<'_>) -> String {
    let mut spelling = name.to_owned();
    for (option, setting) in settings {
        let value = match setting {
            Setting::Count(value, _) => value.to_string(),
            Setting::Bound(None, _) => continue,
            Setting::Bound(Some(value), _) => value.to_string(),
            Setting::Share(value, _) => value.to_string(),
            Setting::Switch(true) => "yes".into(),
            Setting::Switch(false) => "no".into(),
        };
        spelling = format!("{spelling}:{option}={value}");
    }
    spelling
}

/// Gives settings the values in `options`, `name=value` each. Fails when there is none of that name, when
/// it was given before, and when the value is not one that it may have.
pub fn set<'a>(
    settings: &mut Settings<'_>,
    options: impl IntoIterator<Item = &'a str>,
) -> Result<()> {
    let mut given = Vec::new();
    for option in options {
        let what = set_one(settings, option)?;
        if given.contains(&what) {
            return Err(bad("the option", what, "given once".into()));
        }
        given.push(what);
    }
    Ok(())
}

/// Returns the name.
fn set_one(settings: &mut Settings<'_>, option: &str) -> Result<&'static str> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    let Some((what, place)) = settings.iter_mut().find(|(known, _)| *known == name) else {
        let known = settings.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
        let must = if known.is_empty() { "left out".into() } else { format!("one of {known}") };
        return Err(bad("the option", name, must));
    };
    let what = *what;
    match place {
        Setting::Count(place, range) => **place = count(what, value, range)?,
        Setting::Bound(place, range) => **place = Some(count(what, value, range)?),
        Setting::Share(place, least) => {
            let share = value.parse().ok().filter(|share| (*least..=1.0).contains(share));
            **place = share.ok_or_else(|| bad(what, value, format!("{least} to 1")))?;
        }
        Setting::Switch(place) => {
            **place = match value {
                "yes" => true,
                "no" => false,
                _ => return Err(bad(what, value, "yes or no".into())),
            }
        }
    }
    Ok(what)
}

fn count(what: &'static str, value: &str, range: &RangeInclusive<usize>) -> Result<usize> {
    let number = value.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        let must = match (range.start(), *range.end()) {
            (least, usize::MAX) => format!("at least {least}"),
            (least, most) => format!("{least} to {most}"),
        };
        bad(what, value, must)
    })
}

fn bad(what: &'static str, got: &str, must: String) -> Error {
    Error::BadSetting { what, got: format!("{got:?}"), must }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_go_to_their_places_or_are_refused_by_name() {
        let (mut count, mut bound, mut share, mut switch) = (1, None, 0.5, false);
        let mut settings: Settings<'_> = vec![
            ("count", Setting::Count(&mut count, 1..=8)),
            ("bound", Setting::Bound(&mut bound, 1..=usize::MAX)),
            ("share", Setting::Share(&mut share, 0.125)),
            ("switch", Setting::Switch(&mut switch)),
        ];
        let (name, options) = split("diaa:count=8:bound=60:share=0.25:switch=yes");
        assert_eq!(name, "diaa");
        set(&mut settings, options).unwrap();
        for (option, refusal) in [
            ("count=9", "count is \"9\", but must be 1 to 8"),
            ("bound=0", "bound is \"0\", but must be at least 1"),
            ("share=NaN", "share is \"NaN\", but must be 0.125 to 1"),
            ("share=0", "share is \"0\", but must be 0.125 to 1"),
            ("share", "share is \"\", but must be 0.125 to 1"),
            ("switch=1", "switch is \"1\", but must be yes or no"),
            ("count=8:count=8", "the option is \"count\", but must be given once"),
            ("width=1", "the option is \"width\", but must be one of count, bound, share, switch"),
        ] {
            assert_eq!(set(&mut settings, option.split(':')).unwrap_err().to_string(), refusal);
        }
        let said = spelled("diaa", &settings);
        assert_eq!(said, "diaa:count=8:bound=60:share=0.25:switch=yes");
        assert_eq!((count, bound, share, switch), (8, Some(60), 0.25, true));
        let mut none = None;
        assert_eq!(spelled("diaa", &vec![("bound", Setting::Bound(&mut none, 1..=9))]), "diaa");
    }
}
