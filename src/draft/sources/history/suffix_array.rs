//! All suffixes of a text in order. In: symbols. Out: where each suffix starts, smallest first.

/// No suffix yet.
const VACANT: u32 = u32::MAX;

/// The starts of all suffixes of `text` in lexicographic order; a suffix stands before its own
/// extensions.
///
/// Induced sorting (Nong, Zhang and Chan 2009, SA-IS): time and memory are linear in the length of
/// the text plus the largest symbol, also where the text repeats itself, as a history does.
/// Sorting by comparison would need the length of the repeats for every comparison.
///
/// # Panics
/// At 2^31 symbols.
///
/// ```
/// use coordgen_rs::draft::sources::history::suffix_array::suffix_array;
///
/// let banana = [2, 1, 3, 1, 3, 1];
/// assert_eq!(suffix_array(&banana), [5, 3, 1, 0, 4, 2]);
/// ```
pub fn suffix_array(text: &[u32]) -> Vec<u32> {
    assert!(text.len() < 1 << 31, "a suffix array holds less than 2^31 suffixes");
    match text {
        [] => Vec::new(),
        [_] => vec![0],
        _ => Sorter::new(text).sort(),
    }
}

struct Sorter<'a> {
    text: &'a [u32],
    /// Whether a suffix is smaller than the one that starts after it.
    rises: Vec<bool>,
    /// Where in the array the suffixes begin that start with a symbol; those that do not rise
    /// come first.
    falling_starts: Vec<u32>,
    /// Where those of them begin that rise.
    rising_starts: Vec<u32>,
    sorted: Vec<u32>,
}

impl<'a> Sorter<'a> {
    fn new(text: &'a [u32]) -> Self {
        let mut rises = vec![false; text.len()];
        for at in (0..text.len() - 1).rev() {
            rises[at] = text[at] < text[at + 1] || (text[at] == text[at + 1] && rises[at + 1]);
        }
        let num_symbols = text.iter().max().map_or(0, |&largest| largest as usize + 1);
        let (mut falling_starts, mut rising_starts) = (vec![0; num_symbols], vec![0; num_symbols]);
        for (&symbol, &rises) in text.iter().zip(&rises) {
            let counts = if rises { &mut rising_starts } else { &mut falling_starts };
            counts[symbol as usize] += 1;
        }
        let mut start = 0;
        for (falling, rising) in falling_starts.iter_mut().zip(&mut rising_starts) {
            let (num_falling, num_rising) = (*falling, *rising);
            (*falling, *rising) = (start, start + num_falling);
            start += num_falling + num_rising;
        }
        Self { text, rises, falling_starts, rising_starts, sorted: vec![VACANT; text.len()] }
    }

    fn sort(mut self) -> Vec<u32> {
        let valleys: Vec<u32> =
            (1..self.text.len() as u32).filter(|&at| self.is_valley(at as usize)).collect();
        if valleys.is_empty() {
            self.induce(&[]);
            return self.sorted;
        }
        self.induce(&valleys);
        let sorted_valleys = self.sort_valleys(&valleys);
        self.induce(&sorted_valleys);
        self.sorted
    }

    /// Whether the text falls before `at` and rises from there on.
    fn is_valley(&self, at: usize) -> bool {
        at > 0 && self.rises[at] && !self.rises[at - 1]
    }

    /// Sorts all suffixes by what is known of the order of `valleys`: right where they are sorted,
    /// and right up to the next valley where they are in any order.
    fn induce(&mut self, valleys: &[u32]) {
        let Self { text, rises, falling_starts, rising_starts, sorted } = self;
        sorted.fill(VACANT);
        let mut next = rising_starts.clone();
        let append = |sorted: &mut Vec<u32>, next: &mut Vec<u32>, at: u32| {
            let slot = &mut next[text[at as usize] as usize];
            sorted[*slot as usize] = at;
            *slot += 1;
        };
        for &at in valleys {
            append(sorted, &mut next, at);
        }
        next.copy_from_slice(falling_starts);
        append(sorted, &mut next, text.len() as u32 - 1);
        for rank in 0..text.len() {
            let at = sorted[rank];
            if at != VACANT && at > 0 && !rises[at as usize - 1] {
                append(sorted, &mut next, at - 1);
            }
        }
        // Rising suffixes fill their part of each symbol from its end.
        next.clear();
        next.extend_from_slice(&falling_starts[1..]);
        next.push(text.len() as u32);
        for rank in (0..text.len()).rev() {
            let at = sorted[rank];
            if at != VACANT && at > 0 && rises[at as usize - 1] {
                let slot = &mut next[text[at as usize - 1] as usize];
                *slot -= 1;
                sorted[*slot as usize] = at - 1;
            }
        }
    }

    /// The valleys as their suffixes are ordered, after they were induced in the text's order.
    ///
    /// Their stretches up to the next valley are in order now; equal ones get equal names, and the
    /// suffix array of the names orders the rest.
    fn sort_valleys(&self, valleys: &[u32]) -> Vec<u32> {
        let by_stretch: Vec<u32> = self
            .sorted
            .iter()
            .copied()
            .filter(|&at| at != VACANT && self.is_valley(at as usize))
            .collect();
        // A valley has a neighbour that is none, so half of its start is an index of its own.
        let mut names = vec![VACANT; self.text.len() / 2 + 1];
        let mut name = 0;
        for (rank, &at) in by_stretch.iter().enumerate() {
            if rank > 0 && !self.equal_stretches(by_stretch[rank - 1] as usize, at as usize) {
                name += 1;
            }
            names[at as usize / 2] = name;
        }
        if name as usize + 1 == valleys.len() {
            return by_stretch;
        }
        let named: Vec<u32> = valleys.iter().map(|&at| names[at as usize / 2]).collect();
        drop(names);
        suffix_array(&named).into_iter().map(|index| valleys[index as usize]).collect()
    }

    /// Whether two valleys are followed by the same symbols up to the next valley and with it.
    fn equal_stretches(&self, one: usize, other: usize) -> bool {
        let text = self.text;
        for len in 0.. {
            let (one, other) = (one + len, other + len);
            if one.max(other) >= text.len() || text[one] != text[other] {
                return false;
            }
            if len > 0 && (self.is_valley(one) || self.is_valley(other)) {
                return self.is_valley(one) && self.is_valley(other);
            }
        }
        unreachable!("the text ends")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(text: &[u32]) -> Vec<u32> {
        let mut starts: Vec<u32> = (0..text.len() as u32).collect();
        starts.sort_by_key(|&start| &text[start as usize..]);
        starts
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn suffixes_are_in_order(
            text in (1..5u32).prop_flat_map(|alphabet| prop::collection::vec(0..alphabet, 0..80)),
        ) {
            prop_assert_eq!(suffix_array(&text), naive(&text));
        }

        #[test]
        fn repeated_texts_are_in_order(
            text in prop::collection::vec(0..3u32, 1..20), times in 1usize..20,
        ) {
            let text = text.repeat(times);
            prop_assert_eq!(suffix_array(&text), naive(&text));
        }
    }
}
