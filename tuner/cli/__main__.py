from meshtune.tuner.cli.main import main

main()
