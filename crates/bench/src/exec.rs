//! One run: every scenario in every round, with all contenders in turn and the first one rotating.

use std::collections::BTreeMap;

use anyhow::bail;

use crate::contender::Contender;
use crate::scenario::{self, Scenario};
use crate::table::{self, Style};

pub(crate) struct Plan {
    pub contenders: Vec<Contender>,
    pub rounds: usize,
    /// The name of a single scenario.
    pub only: Option<String>,
    pub style: Style,
}

/// Every value of a run, by contender and metric, one for every round in which it could be taken.
#[derive(Default)]
pub(crate) struct Samples(BTreeMap<(&'static str, &'static str), BTreeMap<usize, f64>>);

impl Samples {
    fn add(&mut self, contender: &'static str, metric: &'static str, sample: (usize, f64)) {
        self.0.entry((contender, metric)).or_default().insert(sample.0, sample.1);
    }

    fn of(&self, contender: &'static str, metric: &'static str) -> impl Iterator<Item = (usize, f64)> {
        self.0.get(&(contender, metric)).into_iter().flatten().map(|(&round, &value)| (round, value))
    }

    pub(crate) fn median(&self, contender: &'static str, metric: &'static str) -> Option<f64> {
        scenario::median(self.of(contender, metric).map(|(_, value)| value).collect())
    }

    /// The median of the ratios of the single rounds: the machine may be busier in one than in another.
    pub(crate) fn ratio(&self, over: &'static str, under: &'static str, metric: &'static str) -> Option<f64> {
        let under: BTreeMap<usize, f64> = self.of(under, metric).collect();
        let ratios = self.of(over, metric).filter_map(|(round, value)| Some(value / under.get(&round)?));
        scenario::median(ratios.filter(|ratio| ratio.is_finite()).collect())
    }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for a terminal")]
pub(crate) fn run(plan: &Plan) -> anyhow::Result<()> {
    let mut samples = Samples::default();
    let chosen = |scenario: &&Scenario| plan.only.as_deref().is_none_or(|only| only == scenario.name);
    if scenario::ALL.iter().filter(chosen).count() == 0 {
        let names: Vec<_> = scenario::ALL.iter().map(|scenario| scenario.name).collect();
        bail!("there is no such scenario; there are {}", names.join(", "));
    }
    for round in 0..plan.rounds {
        for (index, scenario) in scenario::ALL.iter().filter(chosen).enumerate() {
            eprintln!("round {} of {}: {}", round + 1, plan.rounds, scenario.name);
            for turn in 0..plan.contenders.len() {
                let contender = &plan.contenders[(round + index + turn) % plan.contenders.len()];
                if !scenario.entrants.admit(contender.kind) {
                    continue;
                }
                match contender.start().and_then(|server| (scenario.run)(&server)) {
                    Ok(figures) => figures.into_iter().for_each(|(metric, value)| samples.add(contender.name(), metric, (round, value))),
                    Err(error) => eprintln!("  {} gives no figure: {error:#}", contender.name()),
                }
            }
        }
    }
    println!("{}", table::render(&samples, plan.style));
    Ok(())
}
