"""Programs that show what there is: `qacg demo`, speed on this machine, a summariser of invented minutes."""
