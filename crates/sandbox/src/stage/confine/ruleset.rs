//! Landlock: the second fence around files, and the one around signals and sockets without a path.
//!
//! It cannot take anything away inside a directory that it allows to be written; that is what the view is for.

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
};

use super::{During, Refused};
use crate::plan::Confinement;
use crate::policy::Access;

/// Places outside of any policy that programs have to write to. All of them belong to the sandbox alone.
const PRIVATE: [&str; 2] = ["/dev", "/proc"];

pub fn restrict(confinement: &Confinement) -> Result<(), Refused> {
    let abi = ABI::V6;
    // Devices are few and harmless here, and terminals could not be used without.
    let handled = AccessFs::from_all(abi) & !BitFlags::from(AccessFs::IoctlDev);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(handled)
        .during("Landlock")?
        .scope(Scope::from_all(abi))
        .during("Landlock")?
        .create()
        .during("Landlock")?;
    let reading = AccessFs::from_read(abi);
    let writing = confinement.places.iter().filter(|place| place.access == Access::Write).map(|place| place.path.as_path());
    rules = rules.add_rule(PathBeneath::new(PathFd::new("/").during("Landlock")?, reading)).during("Landlock")?;
    for path in writing.chain(PRIVATE.map(std::path::Path::new)) {
        let place = PathFd::new(path).during(format!("Landlock at {}", path.display()))?;
        let access = if path.is_dir() { handled } else { handled & AccessFs::from_file(abi) };
        rules = rules.add_rule(PathBeneath::new(place, access)).during("Landlock")?;
    }
    rules.restrict_self().during("Landlock")?;
    Ok(())
}
